"""The `headway` program."""
