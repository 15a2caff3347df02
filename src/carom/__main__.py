"""``python -m carom`` is the command ``carom``. Rule: nothing else happens here."""

from carom.cli import main

if __name__ == "__main__":
    main()
