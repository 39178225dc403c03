#!/usr/bin/env bash
# SaturnMQ and Apache's servers in one cluster.
#
#   tests/clients/cluster.sh [PROGRAM]   runs everything; PROGRAM is target/release/saturnmq unless
#                                        given
#   tests/clients/cluster.sh --fetch     only downloads what a run needs
#
# 1. SaturnMQ in front of Apache's name server, 4.9.7 and 5.3.3: it registers, a topic made later
#    has a route soon, it is registered again soon after the name server restarted, and it has
#    unregistered when it stops.
# 2. Apache's broker 4.9.7 at SaturnMQ's name server, beside SaturnMQ and a second one: mqadmin of
#    both releases lists all three, Apache's Java and Go clients fill and consume a topic on all.
#
# Needs a JDK, Maven and Go. Everything runs on free ports of 127.0.0.1, but Apache's 4.9.7 always
# listens on all addresses. Ends with "done" and exit 0, or with the first thing that went wrong.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly RELEASES=(4.9.7 5.3.3)
readonly OPENED=(--add-opens java.base/java.nio=ALL-UNNAMED
  --add-opens java.base/sun.nio.ch=ALL-UNNAMED)
# Tenths of a second that anything may take.
readonly PATIENCE=300

class_path() {
  echo "tests/clients/cluster/target/$1.classpath"
}

fetch() {
  local release profile
  for release in "${RELEASES[@]}"; do
    [[ -s $(class_path "$release") ]] && continue
    [[ $release == 4.9.7 ]] && profile=(-Pbroker) || profile=()
    mvn -B -q -ntp -f tests/clients/cluster/pom.xml "${profile[@]}" \
      -Drocketmq.version="$release" dependency:build-classpath \
      -Dmdep.outputFile="$PWD/$(class_path "$release")"
  done
}

if [[ ${1:-} == --fetch ]]; then
  fetch
  exit
fi
saturnmq=${1:-target/release/saturnmq}
work=$(mktemp -d)
pids=()

stop_all() {
  local pid
  for pid in "${pids[@]}"; do
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
}
trap 'stop_all; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

fail() {
  echo "FAILED: $*"
  tail -n 20 "$work"/*.log 2>/dev/null || true
  exit 1
}

# await WHAT COMMAND…: until the command succeeds.
await() {
  local what=$1 waited
  shift
  for ((waited = 0; waited < PATIENCE; waited++)); do
    if "$@" >/dev/null 2>&1; then
      echo "$what, after $((waited / 10)) s"
      return 0
    fi
    sleep 0.1
  done
  fail "not in $((PATIENCE / 10)) s: $what"
}

gone() {
  ! kill -0 "$1" 2>/dev/null
}

# A port below those that connections get and above those of the other suites, of which the two
# around it are free as well.
free_port() {
  local port near
  while true; do
    port=$((27000 + RANDOM % 5700))
    for near in $((port - 2)) "$port" $((port + 1)); do
      (: <"/dev/tcp/127.0.0.1/$near") 2>/dev/null && continue 2
    done
    echo "$port"
    return
  done
}

# home NAME: Apache's servers insist on a logging configuration below theirs.
home() {
  local part
  mkdir -p "$work/$1/conf"
  for part in logback_broker.xml logback_namesrv.xml logback_tools.xml rmq.broker.logback.xml \
    rmq.namesrv.logback.xml rmq.tools.logback.xml; do
    echo '<configuration><root level="OFF"/></configuration>' >"$work/$1/conf/$part"
  done
}

# java_program NAME RELEASE HEAP CLASS ARGUMENT…: in the foreground, for a background job.
java_program() {
  local name=$1 release=$2 heap=$3
  shift 3
  export ROCKETMQ_HOME="$work/$name" NAMESRV_ADDR=
  exec java -Xmx"$heap" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "${OPENED[@]}" \
    -Duser.home="$ROCKETMQ_HOME" -Drocketmq.home.dir="$ROCKETMQ_HOME" \
    -cp "$(<"$(class_path "$release")")" "$@"
}

booted() {
  grep -q 'boot success' "$work/$1.log"
}

# name_server RELEASE PORT: starts Apache's; sets pid.
name_server() {
  local name=names-$1
  home "$name"
  printf '%s\n' "listenPort=$2" bindAddress=127.0.0.1 "kvConfigPath=$work/$name/kv.json" \
    "configStorePath=$work/$name/names.conf" >"$work/$name/names.conf"
  (java_program "$name" "$1" 256m org.apache.rocketmq.namesrv.NamesrvStartup \
    -c "$work/$name/names.conf") >"$work/$name.log" 2>&1 &
  pid=$!
  pids+=("$pid")
}

# apache_broker RELEASE PORT NAME_SERVER: starts Apache's; sets pid.
apache_broker() {
  home apache
  printf '%s\n' brokerClusterName=DefaultCluster brokerName=apache brokerId=0 brokerIP1=127.0.0.1 \
    "listenPort=$2" "namesrvAddr=$3" "storePathRootDir=$work/apache/store" \
    "storePathCommitLog=$work/apache/store/commitlog" mappedFileSizeCommitLog=16777216 \
    diskMaxUsedSpaceRatio=95 >"$work/apache/broker.conf"
  (java_program apache "$1" 1g org.apache.rocketmq.broker.BrokerStartup \
    -c "$work/apache/broker.conf") >"$work/apache.log" 2>&1 &
  pid=$!
  pids+=("$pid")
}

# saturn NAME OPTION…: starts SaturnMQ; sets pid.
saturn() {
  local name=$1
  shift
  "$saturnmq" serve --data-dir "$work/data-$name" --listen 127.0.0.1:0 --set httpPort=0 \
    --set "brokerName=$name" "$@" >"$work/$name.banner" 2>"$work/$name.log" &
  pid=$!
  pids+=("$pid")
  await "$name is ready" grep -q '^  ready' "$work/$name.banner"
}

admin() {
  timeout 20 "$saturnmq" admin --name-server "$@"
}

has_route() {
  admin "$1" topic status "$2" | grep -q messages
}

has_no_route() {
  local said
  ! said=$(admin "$1" topic status "$2" 2>&1) && grep -q 'no topic' <<<"$said"
}

# --- 1: SaturnMQ in front of Apache's name server -------------------------------------------------

# in_front_of RELEASE, in a subshell with processes of its own.
in_front_of() {
  local release=$1 port address name=saturn-$1 names broker
  trap stop_all EXIT
  port=$(free_port)
  address=127.0.0.1:$port
  name_server "$release" "$port"
  names=$pid
  await "name server $release" booted "names-$release"
  saturn "$name" --set "namesrvAddr=$address"
  broker=$pid
  await "$name registers" admin "$address" topic create Early
  await "a topic has a route" has_route "$address" Early
  kill "$names"
  await "name server $release stops" gone "$names"
  name_server "$release" "$port"
  await "name server $release again" booted "names-$release"
  await "$name is registered again" has_route "$address" Early
  admin "$address" topic create Later >/dev/null || fail "a topic after the restart"
  await "a later topic has a route" has_route "$address" Later
  kill "$broker"
  await "$name stops" gone "$broker"
  wait "$broker" || fail "$name ended with $?"
  has_no_route "$address" Later || fail "$name has not unregistered"
  echo "$name has unregistered"
}

# --- 2: Apache's broker at SaturnMQ's name server -------------------------------------------------

mqadmin() {
  local release=$1
  shift
  (java_program "tools-$release" "$release" 256m \
    org.apache.rocketmq.tools.command.MQAdminStartup "$@") 2>&1
}

# lists_all RELEASE ADDRESS: all three brokers stand in the tool's list.
lists_all() {
  local said name
  said=$(mqadmin "$1" clusterList -n "$2")
  for name in saturn second apache; do
    grep -q -E "^DefaultCluster +$name +0 +127.0.0.1:" <<<"$said" || {
      echo "$said"
      fail "mqadmin $1 does not list $name"
    }
  done
  echo "mqadmin $1 lists saturn, second and apache"
}

# java_client ADDRESS: the tool's own client sends to every broker and reads all of it.
java_client() {
  local said name number
  mqadmin 4.9.7 updateTopic -n "$1" -c DefaultCluster -t Java >/dev/null
  for name in saturn second apache; do
    said=$(mqadmin 4.9.7 sendMessage -n "$1" -t Java -p "to $name" -b "$name" -i 0)
    grep -q SEND_OK <<<"$said" || { echo "$said"; fail "no message to $name"; }
  done
  said=$(mqadmin 4.9.7 consumeMessage -n "$1" -t Java -c 99)
  for name in saturn second apache; do
    grep -q "to $name" <<<"$said" || { echo "$said"; fail "no message from $name"; }
  done
  echo "Apache's Java client reads from saturn, second and apache"
}

beside_apache() {
  local address port
  saturn saturn --name-server-port 0
  address=$(sed -n 's/^  name server *\([0-9.]*:[0-9]*\).*/\1/p' "$work/saturn.banner")
  port=$(free_port)
  apache_broker 4.9.7 "$port" "$address"
  saturn second --set "namesrvAddr=$address"
  await "Apache's broker" booted apache
  home tools-4.9.7
  home tools-5.3.3
  lists_all 4.9.7 "$address"
  lists_all 5.3.3 "$address"
  java_client "$address"
  (cd tests/clients/go && ROCKETMQ_NAMESRV=$address CLIENTS_RUN=cluster-$$ \
    timeout 100 go test -count=1 -tags cluster -run SeveralBrokers .) || fail "the Go client"
}

fetch
jobs=()
for release in "${RELEASES[@]}"; do
  (in_front_of "$release") &
  jobs+=($!)
done
for job in "${jobs[@]}"; do
  wait "$job"
done
beside_apache
echo done
