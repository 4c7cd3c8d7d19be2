#!/bin/sh
# install.sh libraries: what /source/libraries.txt lists; install.sh project COMPONENT: the wheel itself, with its bill of
# materials. Into /opt/flyball, for the Dockerfile.
set -eu
packages() { echo /opt/flyball/lib/python3*/site-packages; }
# Valid whatever time the files are given later: an image's files have one fixed time, and its root is read-only.
compile() { python3 -m compileall -q --invalidation-mode unchecked-hash "$@"; }
case $1 in
  libraries)
    # By the name that it has in the result, which has no other.
    "$(readlink -f /usr/bin/python3)" -m venv --without-pip /opt/flyball
    pip --python /opt/flyball/bin/python install --only-binary :all: --no-compile --requirement /source/libraries.txt
    cd "$(packages)"
    # What colours the source code of 500 languages for `rich`, which colours none here.
    find pygments/lexers -name '*.py' ! -name __init__.py ! -name _mapping.py -delete
    find . -depth -type d \( -name tests -o -name test \) -exec rm -rf {} +
    find . -type f -perm /111 ! -name '*.so*' -exec chmod a-x {} +
    compile .
    find /opt/flyball/bin -type f -delete
    rm -rf /opt/flyball/include /opt/flyball/.gitignore
    ;;
  project)
    # Beside the libraries, not among them: an upgrade then brings a layer of a few megabytes.
    pip --python /opt/flyball/bin/python install --no-deps --no-index --no-compile --prefix /installed /wheel/flyball-*.whl
    rm -f /installed/bin/kubectl-flyball  # what people run beside kubectl
    compile -s /installed -p /opt/flyball /installed
    cp -r /installed/. /opt/flyball/
    python3 /source/bill_of_materials.py "flyball-$2" "$(packages)" /root-filesystem > /installed/bom.cdx.json
    ;;
esac
