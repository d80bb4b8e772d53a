#!/usr/bin/env bash
# kafka-local.sh: a real Apache Kafka (KRaft) for development and tests, without Docker: one node, or a small cluster.
#
#   kafka-local.sh start        fetch the jars if needed, start fresh, print the bootstrap addresses
#   kafka-local.sh resume [N]   start again after `stop` or `kill`: same ports, same data; all nodes, or node N
#   kafka-local.sh stop [N]     stop by pid (SIGTERM); the data stays until the next `start`
#   kafka-local.sh kill [N]     the same with SIGKILL, for tests of a crash
#   kafka-local.sh status       print the addresses and exit 0 if node 1 runs, exit 1 if not
#   kafka-local.sh check        exit 0 if it could start here, else print what is missing and exit 1
#   kafka-local.sh fetch        only fetch (to fill a CI cache)
#   kafka-local.sh clean        stop and delete the run directory (data, logs, pids); the cached jars stay
#
# Needs: bash, ps, a Java 17+ runtime, and Maven for the first fetch only (about 44 MB from Maven Central).
# Environment, all optional:
#   KAFKA_VERSION   default 4.3.1 (share groups are on by default since 4.2)
#   KAFKA_CACHE     default ${XDG_CACHE_HOME:-$HOME/.cache}/sluice/kafka
#   KAFKA_RUN_DIR   default ${TMPDIR:-/tmp}/sluice-kafka-$UID; a folder for each node: one Kafka for each run directory
#   KAFKA_NODES     default 1. Node 1 is also the controller: stopping it stops elections
#   KAFKA_HOST      default 127.0.0.1; the address of this machine in a network, so that workers of others reach the broker. It asks
#                   nobody for a password: only in a network where everybody may read and write
#   KAFKA_PORT      port of node 1 (the controller takes the next, node N takes port + N); default: a free one
#   KAFKA_HEAP      default 256m
#   KAFKA_JAVA      more options of the JVM; -XX:TieredStopAtLevel=1 spares a broker that lives for a minute
#   KAFKA_EXTRA     more lines for server.properties
set -euo pipefail

version=${KAFKA_VERSION:-4.3.1}
cache=${KAFKA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/kafka}
run=${KAFKA_RUN_DIR:-${TMPDIR:-/tmp}/sluice-kafka-$UID}
heap=${KAFKA_HEAP:-256m}
nodes=${KAFKA_NODES:-1}
host=${KAFKA_HOST:-127.0.0.1}
libs=$cache/$version
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

die() { echo "kafka-local: $*" >&2; exit 1; }

java_version() { "$java" -version 2>&1 | sed -nE '1s/.*version "([^"]+)".*/\1/p' || true; }

check() {
  local found; found=$(java_version)
  [ "${found%%.*}" -ge 17 ] 2>/dev/null || die "the broker needs a Java 17+ runtime (found: ${found:-none}); install one, or set KAFKA_BROKERS"
  [ -f "$libs/.complete" ] || command -v mvn >/dev/null ||
    die "no jars in $libs and no Maven to fetch them; install Maven, copy a filled cache there, or set KAFKA_BROKERS"
}

# Fetches into a folder of its own and moves it into place, so that two callers at once do no harm.
fetch() {
  check
  [ -f "$libs/.complete" ] && return 0
  mkdir -p "$cache"
  local tmp; tmp=$(mktemp -d "$cache/fetch.XXXXXX")
  # The broker's pom brings log4j-core but no slf4j binding: without one it logs nothing.
  cat > "$tmp/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>kafka-local</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
 <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
 <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version></dependency>
</dependencies></project>
POM
  echo "kafka-local: fetching Kafka $version" >&2
  mvn -q -B -f "$tmp/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$tmp/lib" >&2 ||
    { rm -rf "$tmp"; die "the fetch failed"; }
  [ -f "$tmp/lib/kafka_2.13-$version.jar" ] || { rm -rf "$tmp"; die "the fetch left no broker jar"; }
  touch "$tmp/lib/.complete"
  [ -f "$libs/.complete" ] || { rm -rf "$libs"; mv -T "$tmp/lib" "$libs" 2>/dev/null || true; }
  rm -rf "$tmp"
}

alive() { # $1 = node: its pid file names a live broker of this run directory
  local pid; pid=$(cat "$run/$1/pid" 2>/dev/null) || return 1
  [ -n "$pid" ] && case "$(ps -o args= -p "$pid" 2>/dev/null)" in *kafka.Kafka*"$run/$1/server.properties"*) return 0 ;; esac
  return 1
}

free_port() { # two free neighbours
  local port
  for _ in $(seq 50); do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && ! (exec 3<>"/dev/tcp/127.0.0.1/$((port + 1))") 2>/dev/null; then
      echo "$port"; return
    fi
  done
  die "no free port"
}

properties() { # $1 = node, $2 = port of node 1, $3 = data directory
  local port=$2 roles=broker listener='' replicas=1
  if [ "$1" = 1 ]; then roles=broker,controller listener=,CONTROLLER://127.0.0.1:$(($2 + 1)); else port=$(($2 + $1)); fi
  if [ "$nodes" -ge 3 ]; then replicas=3; fi
  cat <<P
process.roles=$roles
node.id=$1
controller.quorum.voters=1@127.0.0.1:$(($2 + 1))
listeners=PLAINTEXT://$host:$port$listener
advertised.listeners=PLAINTEXT://$host:$port
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$3
auto.create.topics.enable=false
# Internal topics with no more replicas than there are nodes (share groups hang otherwise), and few partitions.
offsets.topic.replication.factor=$replicas
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=$replicas
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=$replicas
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
# Tests: no waiting for a second member, short sessions and locks allowed.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.share.min.session.timeout.ms=1000
group.share.min.heartbeat.interval.ms=200
group.share.min.record.lock.duration.ms=1000
# Assignments at once instead of gathered for a second (4.3; older brokers ignore the line).
group.share.assignment.interval.ms=0
# A dead node is noticed soon.
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
num.network.threads=2
num.io.threads=2
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.threads=1
${KAFKA_EXTRA:-}
P
}

log4j() {
  cat <<'L'
status=error
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=[%d] %p %m (%c{1})%n
rootLogger.level=INFO
rootLogger.appenderRef.c.ref=C
logger.x.name=org.apache.kafka.common.config.AbstractConfig
logger.x.level=WARN
L
}

# Formatting costs two JVM starts. Its result does not depend on the ports, so it is kept and copied.
format() { # $1 = where the formatted directory is kept
  [ -f "$1/meta.properties" ] && return 0
  local tmp; tmp=$(mktemp -d "$cache/format.XXXXXX")
  properties 1 19092 "$tmp/data" > "$tmp/server.properties"
  "$java" -XX:TieredStopAtLevel=1 -cp "$libs/*" -Dlog4j2.configurationFile="$run/log4j2.properties" kafka.tools.StorageTool \
    format -t AAAAAAAAAAAAAAAAAAAAAA -c "$tmp/server.properties" > "$run/format.log" 2>&1 ||
    { cat "$run/format.log" >&2; rm -rf "$tmp"; die "the format failed"; }
  mv -T "$tmp/data" "$1" 2>/dev/null || [ -f "$1/meta.properties" ] || die "the formatted directory could not be kept"
  rm -rf "$tmp"
}

prepare() { # $1 = node, $2 = port of node 1, $3 = the formatted directory, which names node 1
  rm -rf "${run:?}/$1"; mkdir -p "$run/$1"
  cp -r "$3" "$run/$1/data"
  sed -i.bak -E "s/^node.id=.*/node.id=$1/; s/^directory.id=./directory.id=$1/" "$run/$1/data/meta.properties"
  rm "$run/$1/data/meta.properties.bak"
  properties "$1" "$2" "$run/$1/data" > "$run/$1/server.properties"
}

class_archive() { echo "$cache/classes-$version-$(java_version).jsa"; }

# Starts the JVM of node $1 on what its folder holds.
launch() {
  # A class-data archive, written when a broker stops, cuts the start by more than half.
  local dir=$run/$1 archive option; archive=$(class_archive)
  if [ -f "$archive" ]; then option=-XX:SharedArchiveFile=$archive; else option=-XX:ArchiveClassesAtExit=$dir/classes.jsa; fi
  : > "$dir/log"
  nohup "$java" -Xms64m -Xmx"$heap" -XX:+UseSerialGC -Xshare:auto ${KAFKA_JAVA:-} -Xlog:disable -Xlog:all=off "$option" -cp "$libs/*" \
    -Dlog4j2.configurationFile="$run/log4j2.properties" kafka.Kafka "$dir/server.properties" >> "$dir/log" 2>&1 < /dev/null &
  echo $! > "$dir/pid"
}

# Waits for node $1; fails without a word, the log says why.
await() {
  for _ in $(seq 1200); do
    grep -q 'Kafka Server started' "$run/$1/log" && return 0
    kill -0 "$(cat "$run/$1/pid")" 2>/dev/null || return 1
    sleep 0.05
  done
  return 1
}

launch_all() { # the nodes $@, side by side: broker and controller wait for each other
  local node
  for node in "$@"; do launch "$node"; done
  for node in "$@"; do await "$node" || return 1; done
}

fail_start() {
  tail -n 20 "$run"/*/log >&2
  for node in $(seq "$nodes"); do stop "$node" KILL; done
  die "the broker did not start"
}

start() {
  if alive 1; then cat "$run/bootstrap"; return; fi
  fetch
  mkdir -p "$run"; rm -f "$run/bootstrap"
  log4j > "$run/log4j2.properties"
  local formatted=$cache/formatted-$version port node addresses
  format "$formatted"
  for _ in 1 2 3; do
    port=${KAFKA_PORT:-$(free_port)}
    addresses=$host:$port
    for node in $(seq "$nodes"); do
      prepare "$node" "$port" "$formatted"
      [ "$node" = 1 ] || addresses+=,$host:$((port + node))
    done
    # shellcheck disable=SC2046
    if launch_all $(seq "$nodes"); then echo "$addresses" | tee "$run/bootstrap"; return; fi
    grep -q 'Address already in use\|BindException' "$run"/*/log && [ -z "${KAFKA_PORT:-}" ] || break
    for node in $(seq "$nodes"); do stop "$node" KILL; done
  done
  fail_start
}

resume() { # the nodes $@
  [ -f "$run/bootstrap" ] || die "nothing to resume in $run: use start"
  local node stopped=()
  for node in "$@"; do alive "$node" || stopped+=("$node"); done
  [ ${#stopped[@]} -eq 0 ] || launch_all "${stopped[@]}" || fail_start
  cat "$run/bootstrap"
}

stop() { # $1 = node, $2 = signal
  local pid; pid=$(cat "$run/$1/pid" 2>/dev/null) || return 0
  if alive "$1"; then
    kill "-$2" "$pid" 2>/dev/null || true
    for _ in $(seq 400); do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
    kill -9 "$pid" 2>/dev/null || true
  fi
  rm -f "$run/$1/pid"
  # Moved at the end, in one step: a broker that starts meanwhile never maps half an archive.
  if [ -f "$run/$1/classes.jsa" ]; then mv "$run/$1/classes.jsa" "$(class_archive)"; fi
}

each() { # the nodes that a command is for: $1, or all that this run directory has, the controller last
  if [ -n "${1:-}" ]; then echo "$1"; return; fi
  for dir in "$run"/*/; do [ ! -f "$dir/server.properties" ] || basename "$dir"; done | sort -rn
}

case ${1:-} in
  start) start ;;
  # shellcheck disable=SC2046
  resume) resume $(each "${2:-}") ;;
  stop) for node in $(each "${2:-}"); do stop "$node" TERM; done ;;
  kill) for node in $(each "${2:-}"); do stop "$node" KILL; done ;;
  status) alive 1 && cat "$run/bootstrap" ;;
  check) check ;;
  fetch) fetch; echo "$libs" ;;
  clean) for node in $(each); do stop "$node" TERM; done; rm -rf "$run" ;;
  *) sed -n '2,22p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac
