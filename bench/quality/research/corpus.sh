#!/usr/bin/env bash
# Rebuilds the evaluation corpus of real package documentation.
#   corpus.sh DIR
# Downloads named packages (Debian, PyPI, npm) with their ordinary clients, keeps only
# document files (.html .md .rst .txt .pdf .docx), unpacks .gz documents, and checks the bounds.
# DIR must be absent or empty. Exits non-zero on any failure; DIR is then left incomplete.
# Needs: apt-get (a Debian 12 machine), dpkg, python3 with pip, npm, tar, gzip.
set -euo pipefail
export LC_ALL=C

[ $# -eq 1 ] && [ -n "$1" ] || { echo "usage: $0 DIR" >&2; exit 2; }
mkdir -p -- "$1"
out=$(cd -- "$1" && pwd)
[ -z "$(ls -A -- "$out")" ] || { echo "$0: $out is not empty" >&2; exit 2; }
work=$(mktemp -d "${TMPDIR:-/tmp}/corpus.XXXXXX")
trap 'rm -rf -- "$work"' EXIT
chmod 755 "$work"

MIN_DOCS=800 MAX_DOCS=2000 MIN_KB=30000 MAX_KB=60000
MAX_FILE=1500000          # bytes: a larger file is dropped
MAX_DOCX=400000

DEBS="apache2-doc aptitude-doc-es bash-doc borgbackup-doc chrony debian-faq debian-faq-fr
debian-history debian-policy debian-refcard debian-reference-ja debian-reference-zh-cn
developers-reference doc-debian fail2ban git-doc harden-doc installation-guide-amd64 lvm2
maint-guide openssh-client openssh-server postfix-doc postgresql-doc-15 rsync sqlite3-doc"
SDISTS="celery==5.4.0 docutils==0.21.2 flask==3.0.3 gunicorn==22.0.0 mammoth==1.8.0
paramiko==3.4.0 python-docx==1.1.2 requests==2.32.3 supervisor==4.2.5"
NPMS="fastify@5.0.0 mammoth@1.8.0 markdown-it@14.1.0 nodemailer@6.9.15 pino@9.4.0 winston@3.14.2 ws@8.18.0"

retry() { local i; for i in 1 2 3; do "$@" && return 0; sleep 3; done; echo "failed: $*" >&2; return 1; }

# --- download -----------------------------------------------------------------------------
mkdir "$work/deb" "$work/x" "$work/py" "$work/npm"
chmod 777 "$work/deb"
if [ "$(id -u)" = 0 ]; then retry apt-get update -qq >/dev/null 2>&1 || true; fi
# shellcheck disable=SC2086
(cd "$work/deb" && retry apt-get download -qq $DEBS >/dev/null)
for p in $DEBS; do
  set -- "$work/deb/${p}"_*.deb
  [ -f "$1" ] || { echo "$p was not downloaded" >&2; exit 1; }
  mkdir "$work/x/$p"; dpkg -x "$1" "$work/x/$p"
done
for s in $SDISTS; do
  p=${s%%==*}
  retry python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary "$p" \
        -d "$work/py/$p" "$s"
  set -- "$work/py/$p"/*.tar.gz
  [ -f "$1" ] || { echo "$s: no source archive" >&2; exit 1; }
  mkdir "$work/x/py-$p"; tar -xzf "$1" -C "$work/x/py-$p" --strip-components=1 --no-same-owner
done
for s in $NPMS; do
  p=${s%%@*}; mkdir "$work/npm/$p"
  (cd "$work/npm/$p" && retry npm pack --silent "$s" >/dev/null)
  set -- "$work/npm/$p"/*.tgz
  [ -f "$1" ] || { echo "$s: not downloaded" >&2; exit 1; }
  mkdir "$work/x/npm-$p"; tar -xzf "$1" -C "$work/x/npm-$p" --strip-components=1 --no-same-owner
done

# --- pick -----------------------------------------------------------------------------------
# put FILE DEST: copy one file to DEST below the corpus; a .gz is unpacked, a file over the bound dropped
put() {
  local src=$1 dst="$out/$2" max=$MAX_FILE size
  [ -f "$src" ] || return 0          # a dangling link
  mkdir -p -- "$(dirname -- "$dst")"
  case $src in *.gz) gzip -dc -- "$src" >"$dst" ;; *) cat -- "$src" >"$dst" ;; esac
  case $dst in *.docx) max=$MAX_DOCX ;; esac
  size=$(wc -c <"$dst")
  if [ "$size" -lt 60 ] || [ "$size" -gt "$max" ]; then rm -f -- "$dst"; fi
}
# tree SRC DEST NAME-REGEX [EXCLUDE-REGEX]: the files below SRC whose path matches
tree() {
  local src="$work/x/$1" dst=$2 want=$3 not=${4:-^$} n=0 rel
  [ -d "$src" ] || { echo "no folder $1" >&2; exit 1; }
  while IFS= read -r rel; do
    put "$src/$rel" "$dst/${rel%.gz}"; n=$((n + 1))
  done < <(cd "$src" && find . \( -type f -o -type l \) -printf '%P\n' | grep -E -- "$want" \
           | grep -vE -- "$not" | sort)
  [ "$n" -gt 0 ] || { echo "nothing picked in $1" >&2; exit 1; }
}
one() { local f; f="$work/x/$1"; [ -f "$f" ] || { echo "missing $1" >&2; exit 1; }; put "$f" "$2"; }

D=usr/share/doc
HTML='\.html?$'
NOISE='(^|/)(genindex|search|py-modindex|doc-index|ix01|bookindex)[^/]*\.html$|_static/|_sources/'

# PostgreSQL 15: server, SQL reference, types, functions, programs, tutorial
tree postgresql-doc-15/$D/postgresql-doc-15/html postgresql \
  '^(runtime-config|sql-|datatype|functions|ddl|app-|tutorial|indexes|auth|backup|wal|logical-replication|limits|charset|routine|monitoring|mvcc|textsearch|queries|libpq-connect|typeconv|warm-standby|hot-standby|continuous|pg[a-z]*\.html|errcodes|server-|kernel|client-auth|locale|role|user-manag|manage|explicit|transaction-iso|libpq-pgpass|storage-|release-15|intro|history|high-avail|jit|hstore)' \
  '^release-15-([1-9]|1[0-9]|2[0-9])\.html$|^sql-(drop|alter)'
tree git-doc/$D/git-doc git '^(git[^/]*|technical/[^/]*|howto/[^/]*|MyFirst[^/]*)\.html$' '^git-(svn|cvs|p4|archimport|quiltimport)|howto/|^git-(sh-|mailinfo|mailsplit|get-tar|patch-id|http-|remote-|upload-|receive-|daemon|shell|unpack|merge-(one|index|octopus)|fast-import|fmt|stripspace|imap|instaweb|cherry\.|column|check-|checkout-index|credential-|fsmonitor|fetch-pack|send-pack|show-index|update-server|verify-(commit|tag)|mktag|mktree)|^git(cli|core-tutorial|cvs-migration|web)'
tree sqlite3-doc/$D/sqlite3 sqlite '^[^/]*\.html$' '(keyword_index|crossref|requirements|^search|sitemap|^doclist|^c3ref|syntaxdiagrams|optimizer|changes|hlr|^shortnames|hp1|^news|^privatebranch|vdbe|opcode|th3|^tclsqlite|^uri|geopoly|^custombuild|^malloc|^loadext|^btreemodule)'
tree sqlite3-doc/$D/sqlite3 sqlite '^releaselog/3_(39|40)_[0-9]+\.html$'
tree apache2-doc/$D/apache2-doc/manual/en apache '^([^/]*|mod/[^/]*|programs/[^/]*|howto/[^/]*|misc/[^/]*|ssl/[^/]*|vhosts/[^/]*|rewrite/[^/]*)\.html$' '(directive-dict|quickreference|directives)\.html$|mod_(lua|heartbeat|heartmonitor)|platform/'
tree postfix-doc/$D/postfix/html postfix "$HTML" '^(index|postconf\.1|lmtp|postfix-manuals)\.'
tree borgbackup-doc/$D/borgbackup/html borgbackup "$HTML" "$NOISE"
one  bash-doc/$D/bash/bashref.pdf bash/bashref.pdf
# Debian's own manuals
tree debian-policy/$D/debian-policy/policy.html debian-policy "$HTML" "$NOISE"
one  debian-policy/$D/debian-policy/fhs/fhs-3.0.pdf.gz debian-policy/fhs-3.0.pdf
tree developers-reference/usr/share/developers-reference developers-reference "$HTML" "$NOISE"
tree maint-guide/$D/maint-guide maint-guide '\.pdf$'
tree debian-faq/$D/debian/FAQ debian-faq-en '\.en\.html$'
tree debian-faq-fr/$D/debian/FAQ debian-faq-fr '\.fr\.html$'
tree debian-history/$D/debian-history/docs debian-history '(\.en|\.es)\.html$'
tree doc-debian/$D/debian doc-debian '\.txt(\.gz)?$'
one  doc-debian/$D/debian/debian-manifesto.gz doc-debian/debian-manifesto.txt
tree installation-guide-amd64/$D/installation-guide-amd64/de install-guide-de "$HTML"
tree installation-guide-amd64/$D/installation-guide-amd64/en install-guide-en '\.pdf(\.gz)?$'
tree debian-reference-ja/usr/share/debian-reference debian-reference-ja '\.ja\.html$'
tree debian-reference-zh-cn/usr/share/debian-reference debian-reference-zh '\.zh-cn\.html$'
tree harden-doc/$D/harden-doc/html/es-ES seguridad-es "$HTML" 
tree aptitude-doc-es/$D/aptitude/html aptitude-es "$HTML"
tree debian-refcard/$D/debian-refcard refcard '^refcard-(en|de|fr|es|ja|zh_CN)-a4\.pdf(\.gz)?$'
# READMEs and notes
tree lvm2/$D/lvm2 lvm2 '\.txt(\.gz)?$'
tree rsync/$D/rsync rsync '\.md(\.gz)?$'
one  chrony/$D/chrony/FAQ.gz chrony/FAQ.txt
one  chrony/$D/chrony/README.gz chrony/README.txt
one  fail2ban/$D/fail2ban/README.md.gz fail2ban/README.md
one  fail2ban/$D/fail2ban/run-rootless.txt fail2ban/run-rootless.txt
one  fail2ban/$D/fail2ban/FILTERS.gz fail2ban/FILTERS.txt
one  openssh-client/$D/openssh-client/README.Debian.gz openssh/README.Debian.txt
one  openssh-client/$D/openssh-client/README.tun.gz openssh/README.tun.txt
one  openssh-client/$D/openssh-client/OVERVIEW.gz openssh/OVERVIEW.txt
# Python
tree py-celery/docs celery '\.(rst|txt)$' '^(internals/reference|reference|images|templates|_|history/changelog)'
tree py-docutils/docs docutils '\.(rst|txt|html)$' '^dev/'
tree py-flask/docs flask '\.(rst|md)$'
one  py-flask/CHANGES.rst flask/CHANGES.rst
tree py-gunicorn/docs/source gunicorn '\.(rst|md)$'
one  py-gunicorn/README.rst gunicorn/README.rst
one  py-mammoth/README mammoth-py/README.txt 
tree py-paramiko/docs paramiko "$HTML" "$NOISE"
tree py-python-docx/docs python-docx '\.rst$' '^dev/'
tree py-python-docx/features/steps/test_files python-docx/test_files '\.docx$'
tree py-python-docx/tests/test_files python-docx/test_files '\.docx$'
one  py-requests/HISTORY.md requests/HISTORY.md
one  py-requests/README.md requests/README.md
tree py-supervisor/docs supervisor '\.rst$'
one  py-supervisor/CHANGES.rst supervisor/CHANGES.rst
# npm
tree npm-fastify fastify '^(docs/.*|README|SECURITY|GOVERNANCE)\.md$|^(README|SECURITY|GOVERNANCE)\.md$'
tree npm-mammoth mammoth-js '^README\.md$|test/test-data/.*\.docx$'
for p in markdown-it nodemailer pino winston ws; do
  tree npm-$p $p '^([A-Z]+|docs/[^/]*)\.(md|txt)$'
done

find "$out" -type d -empty -delete

# --- check -----------------------------------------------------------------------------------
docs=$(find "$out" -type f | wc -l)
kb=$(find "$out" -type f -printf '%s\n' | awk '{s += $1} END {print int(s / 1024)}')
echo "$docs documents, $kb KB"
if [ "$docs" -lt $MIN_DOCS ] || [ "$docs" -gt $MAX_DOCS ]; then echo "documents out of bounds" >&2; exit 1; fi
if [ "$kb" -lt $MIN_KB ] || [ "$kb" -gt $MAX_KB ]; then echo "size out of bounds" >&2; exit 1; fi
