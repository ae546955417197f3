#!/bin/sh
# Install missing system packages:
#     system_packages.sh [chromium] [headless-shell] [fonts] [nginx]
set -eu
wanted=""
optional=""
for name in "$@"; do
  case "$name" in
    chromium)
      command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
        command -v google-chrome >/dev/null || wanted="$wanted chromium" ;;
    headless-shell)
      # Chromium without a window, which draws pages faster. Without such a package, browser tests
      # run in Chromium.
      command -v chromium-headless-shell >/dev/null || ! command -v apt-cache >/dev/null ||
        optional="chromium-headless-shell" ;;
    nginx)
      # Tests start their own nginx. Under systemd, Debian's package would start another one on
      # port 80. So don't install it there; tests that need it are skipped.
      command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || [ -d /run/systemd/system ] ||
        wanted="$wanted nginx-light" ;;
    fonts)
      # Layout tests need glyphs for Arabic, Thai and Chinese, or they would measure empty boxes.
      [ -n "$(find /usr/share/fonts -name 'NotoSansThai*' 2>/dev/null | head -n 1)" ] ||
        wanted="$wanted fonts-noto-core"
      [ -n "$(find /usr/share/fonts -name 'NotoSansCJK*' 2>/dev/null | head -n 1)" ] ||
        wanted="$wanted fonts-noto-cjk" ;;
  esac
done
[ -z "$wanted$optional" ] && exit 0
if ! command -v apt-get >/dev/null; then
  echo "Please install:$wanted" >&2
  exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
$sudo apt-get update -qq
for name in $optional; do
  [ -z "$(apt-cache policy "$name" | grep "Candidate: [0-9]")" ] || wanted="$wanted $name"
done
[ -z "$wanted" ] && exit 0
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $wanted >/dev/null
