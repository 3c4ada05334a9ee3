#!/bin/sh
# Prints the variables with which cargo builds for an architecture, by its name in Docker, with Debian's
# compilers, on any of them:
#
#   eval "$(docker/target.sh arm64)" && cargo build --target "$TARGET" ..
#
# The compilers for another architecture than this machine's are in crossbuild-essential-arm64 or -amd64.
set -eu
case ${1:-} in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *)
        echo "there is no image for \`${1:-}\`: amd64, arm64" >&2
        exit 1
        ;;
esac
tools=$machine-linux-gnu
# Build scripts look for C compilers, and cargo for the linker, under names of the target.
lower=${machine}_unknown_linux_gnu
upper=$(echo "$lower" | tr '[:lower:]' '[:upper:]')
cat <<END
export TARGET=$machine-unknown-linux-gnu
export CC_$lower=$tools-gcc CXX_$lower=$tools-g++ AR_$lower=$tools-ar
export CARGO_TARGET_${upper}_LINKER=$tools-gcc
END
