"""Access: tokens, host names and certificates, read again when their files change."""
