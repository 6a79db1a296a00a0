"""`python -m validation` is `clustersim`."""

from validation.cli import main

if __name__ == "__main__":
    main()
