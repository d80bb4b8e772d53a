#!/usr/bin/env bash
# Builds the corpus of the question set `fresh`: documents of packages that corpus.sh does not contain.
#   fresh.sh DIR
# Needs: apt-get (a Debian 12 machine), dpkg, python3 with pip, npm, tar, gzip.
set -euo pipefail
export LC_ALL=C

[ $# -eq 1 ] && [ -n "$1" ] || { echo "usage: $0 DIR" >&2; exit 2; }
mkdir -p -- "$1"
out=$(cd -- "$1" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/corpus.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
chmod 755 "$work"

DEBS="aptitude-doc-fr buildbot-doc debian-kernel-handbook debian-reference-de debian-reference-fr debian-reference-it diffutils-doc
docker-doc exim4-doc-html haproxy-doc lighttpd-doc mutt openvpn privoxy stunnel4 zsh-doc"
SDISTS="alembic==1.13.2 click==8.1.7 pytest==8.3.2 scrapy==2.11.2"
NPMS="ajv@8.17.1 axios@1.7.7 bullmq@5.12.0 chokidar@3.6.0 commander@12.1.0 fast-glob@3.3.2 formidable@3.5.1 got@11.8.6 ioredis@5.4.1 knex@3.1.0
pm2@5.4.2 undici@6.19.8 yargs@17.7.2"
FILE_BYTES_MAX=1500000

# pick PACKAGE ROOT PATTERN: copies the documents below ROOT whose path matches; unpacks .gz
pick() {
  local root=$2 file rel
  while IFS= read -r rel; do
    file=$out/$1/${rel%.gz}; mkdir -p -- "$(dirname -- "$file")"
    case $rel in *.gz) gzip -dc -- "$root/$rel" >"$file" ;; *) cat -- "$root/$rel" >"$file" ;; esac
    [ "$(wc -c <"$file")" -le $FILE_BYTES_MAX ] || rm -- "$file"
  done < <(cd "$root" && find . -type f -printf '%P\n' | grep -E -- "$3" |
           grep -vE '(^|/)(genindex|search|py-modindex|[a-z]*_toc|[a-z-]*Index)[^/]*\.html$|_static/|_sources/|node_modules/|/(copyright|LICENSE)' | sort)
  [ -n "$(ls -A "$out/$1")" ] || { echo "nothing picked in $1" >&2; exit 1; }
}

mkdir "$work/deb" "$work/x"
chmod 777 "$work/deb"
# shellcheck disable=SC2086
(cd "$work/deb" && apt-get download -qq $DEBS >/dev/null)
for p in $DEBS; do
  dpkg -x "$work/deb/${p}"_*.deb "$work/x/$p"
  pick "$p" "$work/x/$p/usr/share" '^(doc|debian-reference)/.*(\.html?|\.md|\.rst|\.txt|README[^/]*)(\.gz)?$'
done
for s in $SDISTS; do
  p=${s%%==*}; mkdir "$work/x/$p"
  python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary "$p" -d "$work/py/$p" "$s"
  tar -xzf "$work/py/$p"/*.tar.gz -C "$work/x/$p" --strip-components=1 --no-same-owner
  pick "$p" "$work/x/$p" '^(docs?/.*|README|CHANGES|CHANGELOG)\.(rst|md|txt)$'
done
for s in $NPMS; do
  p=${s%%@*}; mkdir -p "$work/npm/$p" "$work/x/npm-$p"
  (cd "$work/npm/$p" && npm pack --silent "$s" >/dev/null)
  tar -xzf "$work/npm/$p"/*.tgz -C "$work/x/npm-$p" --strip-components=1 --no-same-owner
  pick "$p" "$work/x/npm-$p" '\.md$'
done
echo "$(find "$out" -type f | wc -l) documents, $(du -sk "$out" | cut -f1) KB"
