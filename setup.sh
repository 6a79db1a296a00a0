#!/bin/sh
# Make .venv beside this file and install clustersim into it. `sh setup.sh dev` adds what the tests
# need. Uses $PYTHON, or python3; needs Python 3.10 or newer and a package index.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
extras=${1:+[$1]}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "setup.sh: $python is $("$python" -V 2>&1); Python 3.10 or newer is needed (set PYTHON)" >&2
    exit 1
}
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian and Ubuntu ship venv apart from Python
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -q
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q "python$("$python" -c \
            'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    else
        echo "setup.sh: $python has no venv module; on Debian or Ubuntu: apt-get install python3-venv" >&2
        exit 1
    fi
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install -q --disable-pip-version-check -e ".$extras"
