"""The commands of studies, imported only when they are called because that takes seconds."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from poslens.studies import declared


class StudyGroup(TyperGroup):
    """A group that lists studies with their questions, and imports a study when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names."""
        if args and args[0] in declared():
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def load_all(self) -> StudyGroup:
        """The same group after importing every study's command."""
        for name in declared():
            self.load(name)
        return self

    def load(self, name: str) -> None:
        """Replace the placeholder by the study's command."""
        from poslens.commands.study_command import study_app

        self.commands[name] = typer.main.get_command(study_app(declared()[name].load()))


def add_studies(app: typer.Typer) -> None:
    """Add a placeholder command for every study, with its name and question as help."""
    for study in declared().values():
        app.command(study.name, help=study.question)(_not_loaded)


def _not_loaded() -> None:
    raise RuntimeError("StudyGroup loads a study's command before it is called")
