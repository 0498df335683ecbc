import sys

from mnemorank.cli import main

sys.exit(main())
