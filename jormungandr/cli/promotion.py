"""``jormungandr promotion``: which policy of a model is served, and what an operator decides."""

from __future__ import annotations

import argparse
from typing import Any

from jormungandr.client import RemoteLearner

__all__ = ["add_arguments", "run"]

ACTIONS = {
    "show": "who is champion, who is tried with what so far, and what was decided",
    "promote": "serve the candidate, or a version that is kept",
    "rollback": "serve the champion before this one, or an earlier one",
    "refuse": "end the trial of the candidate; the champion stays",
    "pin": "serve the champion, or a version, and try no other",
    "unpin": "try others again",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in ACTIONS.items():
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("model", metavar="MODEL", help="id of the model")
        action.add_argument("--url", help="of the service (default: JORMUNGANDR_URL)")
        if name in ("promote", "rollback", "pin"):
            action.add_argument("--version", type=int, metavar="N", help="of the policy")
        if name != "show":
            action.add_argument("--reason", default="", metavar="TEXT", help="kept with it")


def run(arguments: argparse.Namespace) -> int:
    """Do it, and print how things stand; return 0."""
    with RemoteLearner(arguments.url, arguments.model) as model:
        if arguments.action == "show":
            found = model.promotion()
        else:
            version = getattr(arguments, "version", None)
            found = model.decide(arguments.action, version, reason=arguments.reason)
    for line in _lines(found):
        print(line)
    return 0


def _lines(found: dict[str, Any]) -> list[str]:
    if found["serve"] == "latest":
        return ["serves the latest policy; nothing is promoted"]
    champion = "none yet" if found["champion"] is None else f"policy {found['champion']}"
    lines = [f"champion   {champion}{', pinned' if found['pinned'] else ''}"]
    if found["candidate"] is not None:
        lines.append(f"candidate  policy {found['candidate']}")
        lines.append(f"evidence   {_evidence(found['evidence'])}")
    for decision in found["history"][-10:]:
        by = f" by the {decision['by']}" if "by" in decision else ""
        reason = f": {decision['reason']}" if decision.get("reason") else ""
        lines.append(f"{decision['kind']:<10} policy {decision['version']}{by}{reason}")
    return lines


def _evidence(evidence: dict[str, Any] | None) -> str:
    """Return the state of a trial that runs in one line."""
    if evidence is None:
        return "not yet counted since the service was started; its learner reads the rows again"
    wanted = evidence["min_episodes"]
    counts = (
        f"{evidence['pairs']} of {wanted} pairs; without pairs {evidence['candidate']} of the"
        f" candidate and {evidence['champion']} of the champion"
    )
    if evidence["estimate"] is None:
        return counts
    return f"{counts}; mean difference so far {evidence['estimate']:+.6g}"
