"""The manual pages of the commands, made from the texts that `--help` prints."""
