"""Look for words that are not ours.

`python -m tests.words` (or `make lint`) names every word that stands more often in the tree than
`words.toml` allows, or less often, with exit code 1; with `--lower` (or by `make words`) the counts
of words that became fewer are lowered there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.words.check import complaint, hits_of, lowered, texts_below, words_in

LIST = Path(__file__).with_name("words.toml")


def main() -> int:
    """Check the checkout, or lower the counts; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.words")
    parser.add_argument("--lower", action="store_true", help="lower the counts to what is left")
    asked = parser.parse_args()
    text = LIST.read_text()
    texts = tuple(texts_below(LIST.parents[2]))
    hits = {word.pattern: hits_of(word, texts) for word in words_in(text)}
    if asked.lower:
        text = lowered(text, {pattern: len(found) for pattern, found in hits.items()})
        LIST.write_text(text)
    complaints = [line for word in words_in(text) for line in complaint(word, hits[word.pattern])]
    print("\n".join(complaints), end="\n" if complaints else "")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
