#!/bin/sh
# Debian packages that some tests want: a browser, a redis server, libraries of Mooncake's. Installed where that can be
# done without asking; elsewhere the tests that want them are skipped, and say so.
set -u
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0
missing=""
for package in chromium chromium-driver redis-server libibverbs1 librdmacm1 libnuma1 liburing2; do
  dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends $missing >/dev/null \
  || echo "could not install:$missing; tests that need them are skipped"
exit 0
