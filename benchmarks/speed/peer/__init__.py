"""What runs in the peers' own environment: none of it imports anything of ours."""
