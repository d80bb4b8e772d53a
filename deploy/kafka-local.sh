#!/usr/bin/env bash
# kafka-local.sh: runs Apache Kafka (KRaft) for development and tests without Docker, as a single node or a small cluster.
#
#   kafka-local.sh start        download the jars if needed, start with empty data, print the bootstrap addresses
#   kafka-local.sh resume [N]   restart all nodes, or node N, after `stop` or `kill`, with the same ports and data
#   kafka-local.sh stop [N]     stop all nodes, or node N, with SIGTERM; the data remains until the next `start`
#   kafka-local.sh kill [N]     like stop, but with SIGKILL, to simulate a crash
#   kafka-local.sh status       print the addresses; exit code 0 if node 1 is running, otherwise 1
#   kafka-local.sh check        exit code 0 if Kafka can start on this machine, otherwise 1 and the reason
#   kafka-local.sh fetch        only download the jars, for example to fill a CI cache
#   kafka-local.sh clean        stop and delete the run directory (data, logs, pids); the cached jars remain
#
# Requires bash, ps, a Java 17+ runtime, and Maven for the first download only (about 44 MB from Maven Central).
# Environment variables, all optional:
#   KAFKA_VERSION   default 4.3.1 (share groups are enabled by default since 4.2)
#   KAFKA_CACHE     default ${XDG_CACHE_HOME:-$HOME/.cache}/sluice/kafka
#   KAFKA_RUN_DIR   default ${TMPDIR:-/tmp}/sluice-kafka-$UID; one cluster per run directory, one subfolder per node
#   KAFKA_NODES     default 1. Node 1 is also the controller; without it there are no leader elections
#   KAFKA_QUORUM    number of nodes that are controllers too, default 1; with 3, leaders are still elected if one node is down
#   KAFKA_HOST      default 127.0.0.1; set it to this machine's address so that workers on other machines can connect.
#                   The broker has no authentication, so use this only in a trusted network
#   KAFKA_PORT      port of node 1 (the controller uses the next port, node N uses port + N); default: a free port
#   KAFKA_HEAP      default 256m
#   KAFKA_JAVA      additional JVM options; -XX:TieredStopAtLevel=1 saves CPU for a short-lived broker
#   KAFKA_EXTRA     additional lines for server.properties
set -euo pipefail

version=${KAFKA_VERSION:-4.3.1}
cache=${KAFKA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/kafka}
run=${KAFKA_RUN_DIR:-${TMPDIR:-/tmp}/sluice-kafka-$UID}
heap=${KAFKA_HEAP:-256m}
nodes=${KAFKA_NODES:-1}
quorum=${KAFKA_QUORUM:-1}
host=${KAFKA_HOST:-127.0.0.1}
libs=$cache/$version
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

die() { echo "kafka-local: $*" >&2; exit 1; }

java_version() { "$java" -version 2>&1 | sed -nE '1s/.*version "([^"]+)".*/\1/p' || true; }

check() {
  local found; found=$(java_version)
  [ "${found%%.*}" -ge 17 ] 2>/dev/null || die "Kafka requires a Java 17+ runtime (found: ${found:-none}); install one, or set KAFKA_BROKERS"
  [ -f "$libs/.complete" ] || command -v mvn >/dev/null ||
    die "no Kafka jars in $libs and no Maven to download them; install Maven, copy the jars there, or set KAFKA_BROKERS"
}

# Downloads into a temporary folder and renames it, so that concurrent downloads are safe.
fetch() {
  check
  [ -f "$libs/.complete" ] && return 0
  mkdir -p "$cache"
  local tmp; tmp=$(mktemp -d "$cache/fetch.XXXXXX")
  # The broker's pom includes log4j-core but no slf4j binding; without a binding Kafka logs nothing.
  cat > "$tmp/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>kafka-local</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
 <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
 <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version></dependency>
</dependencies></project>
POM
  echo "kafka-local: downloading Kafka $version" >&2
  mvn -q -B -f "$tmp/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$tmp/lib" >&2 ||
    { rm -rf "$tmp"; die "the download failed"; }
  [ -f "$tmp/lib/kafka_2.13-$version.jar" ] || { rm -rf "$tmp"; die "the download contains no broker jar"; }
  touch "$tmp/lib/.complete"
  [ -f "$libs/.complete" ] || { rm -rf "$libs"; mv -T "$tmp/lib" "$libs" 2>/dev/null || true; }
  rm -rf "$tmp"
}

alive() { # $1 = node. True if the pid file of the node contains the pid of a running broker of this run directory
  local pid; pid=$(cat "$run/$1/pid" 2>/dev/null) || return 1
  [ -n "$pid" ] && case "$(ps -o args= -p "$pid" 2>/dev/null)" in *kafka.Kafka*"$run/$1/server.properties"*) return 0 ;; esac
  return 1
}

free_port() { # two consecutive free ports
  local port
  for _ in $(seq 50); do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && ! (exec 3<>"/dev/tcp/127.0.0.1/$((port + 1))") 2>/dev/null; then
      echo "$port"; return
    fi
  done
  die "no free port"
}

controller_port() { # $1 = node, $2 = port of node 1
  if [ "$1" = 1 ]; then echo $(($2 + 1)); else echo $(($2 + nodes + $1)); fi
}

properties() { # $1 = node, $2 = port of node 1, $3 = data directory
  local port=$2 roles=broker listener='' replicas=1 voters='' voter
  for voter in $(seq "$quorum"); do voters+=,$voter@127.0.0.1:$(controller_port "$voter" "$2"); done
  if [ "$1" -le "$quorum" ]; then roles=broker,controller listener=,CONTROLLER://127.0.0.1:$(controller_port "$1" "$2"); fi
  if [ "$1" != 1 ]; then port=$(($2 + $1)); fi
  if [ "$nodes" -ge 3 ]; then replicas=3; fi
  cat <<P
process.roles=$roles
node.id=$1
controller.quorum.voters=${voters#,}
listeners=PLAINTEXT://$host:$port$listener
advertised.listeners=PLAINTEXT://$host:$port
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$3
auto.create.topics.enable=false
# Internal topics: few partitions, and at most one replica per node, because share groups hang otherwise.
offsets.topic.replication.factor=$replicas
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=$replicas
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=$replicas
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
# Settings for tests: groups start without a rebalance delay, and tests may choose short session timeouts and locks.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.share.min.session.timeout.ms=1000
group.share.min.heartbeat.interval.ms=200
group.share.min.record.lock.duration.ms=1000
# Assignments are computed at once, instead of once per second (Kafka 4.3 or later; older brokers ignore this setting).
group.share.assignment.interval.ms=0
# A dead broker is detected early, so that tests of a failover are short.
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

# Formatting a directory starts the JVM twice. The result does not depend on the ports, so the formatted directory is cached and copied.
format() { # $1 = cache path of the formatted directory
  [ -f "$1/meta.properties" ] && return 0
  local tmp; tmp=$(mktemp -d "$cache/format.XXXXXX")
  properties 1 19092 "$tmp/data" > "$tmp/server.properties"
  "$java" -XX:TieredStopAtLevel=1 -cp "$libs/*" -Dlog4j2.configurationFile="$run/log4j2.properties" kafka.tools.StorageTool \
    format -t AAAAAAAAAAAAAAAAAAAAAA -c "$tmp/server.properties" > "$run/format.log" 2>&1 ||
    { cat "$run/format.log" >&2; rm -rf "$tmp"; die "formatting the storage failed"; }
  mv -T "$tmp/data" "$1" 2>/dev/null || [ -f "$1/meta.properties" ] || die "could not store the formatted directory"
  rm -rf "$tmp"
}

prepare() { # $1 = node, $2 = port of node 1, $3 = the formatted directory, which contains the id of node 1
  rm -rf "${run:?}/$1"; mkdir -p "$run/$1"
  cp -r "$3" "$run/$1/data"
  sed -i.bak -E "s/^node.id=.*/node.id=$1/; s/^directory.id=./directory.id=$1/" "$run/$1/data/meta.properties"
  rm "$run/$1/data/meta.properties.bak"
  properties "$1" "$2" "$run/$1/data" > "$run/$1/server.properties"
}

class_archive() { echo "$cache/classes-$version-$(java_version).jsa"; }

# Starts the JVM of node $1 with the files in its folder.
launch() {
  # A class-data sharing archive, written when a broker stops, more than halves the start time.
  local dir=$run/$1 archive option; archive=$(class_archive)
  if [ -f "$archive" ]; then option=-XX:SharedArchiveFile=$archive; else option=-XX:ArchiveClassesAtExit=$dir/classes.jsa; fi
  : > "$dir/log"
  nohup "$java" -Xms64m -Xmx"$heap" -XX:+UseSerialGC -Xshare:auto ${KAFKA_JAVA:-} -Xlog:disable -Xlog:all=off "$option" -cp "$libs/*" \
    -Dlog4j2.configurationFile="$run/log4j2.properties" kafka.Kafka "$dir/server.properties" >> "$dir/log" 2>&1 < /dev/null &
  echo $! > "$dir/pid"
}

# Waits for node $1. Prints nothing on failure, because the log of the node contains the reason.
await() {
  for _ in $(seq 1200); do
    grep -q 'Kafka Server started' "$run/$1/log" && return 0
    kill -0 "$(cat "$run/$1/pid")" 2>/dev/null || return 1
    sleep 0.05
  done
  return 1
}

launch_all() { # starts the nodes $@ in parallel, because broker and controller wait for each other
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

resume() { # $@ = nodes
  [ -f "$run/bootstrap" ] || die "nothing to resume in $run; use start"
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
  # The archive is renamed only when it is complete, so a broker that starts meanwhile never maps an incomplete archive.
  if [ -f "$run/$1/classes.jsa" ]; then mv "$run/$1/classes.jsa" "$(class_archive)"; fi
}

each() { # prints node $1, or all nodes of this run directory with the controller last
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
  *) sed -n '2,25p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;;
esac
