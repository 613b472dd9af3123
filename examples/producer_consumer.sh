#!/bin/sh
# Producers and consumers on different sites, with a buffer of three places between them.
#
#   sh examples/producer_consumer.sh            with kofm in the path, or
#   KOFM=target/debug/kofm sh examples/producer_consumer.sh
#
# Two semaphores do everything:
#
#   slots   free places in the buffer, begins with 3: a producer takes one before it puts
#   items   things in the buffer, begins with 0: a consumer takes one before it gets
#
# Who takes from one adds to the other. Nobody gives back what it took itself: that is what makes
# them semaphores and not pools. Producers and consumers talk to different sites, and know nothing
# of each other but the names of the two semaphores and the place where things lie.
set -eu

KOFM=${KOFM:-kofm}    # the program
ITEMS=${ITEMS:-6}     # how many things each producer makes
SLOTS=3               # places in the buffer

work=$(mktemp -d)
buffer=$work/buffer
mkdir "$buffer"

# A cluster of three sites in one process. It prints where each of them answers.
: >"$work/sites"
"$KOFM" up --sites 3 --http 127.0.0.1:0 >"$work/sites" 2>"$work/log" &
cluster=$!
trap 'kill $cluster 2>/dev/null || true; rm -rf "$work"' EXIT
while [ "$(grep -c http "$work/sites")" -lt 3 ]; do
    kill -0 $cluster 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
done
address() { sed -n "s/^s$1 //p" "$work/sites"; }

KOFM_ADDR=$(address 0) "$KOFM" sem set slots --value $SLOTS >/dev/null
KOFM_ADDR=$(address 0) "$KOFM" sem set items --value 0 >/dev/null

producer() { # NAME SITE
    KOFM_ADDR=$(address "$2")
    export KOFM_ADDR
    n=1
    while [ $n -le "$ITEMS" ]; do
        "$KOFM" sem p slots 2>/dev/null      # waits while the buffer is full
        echo "s$2 put $1-$n"
        : >"$buffer/$1-$n"
        ls "$buffer" | wc -l >>"$work/filled"
        "$KOFM" sem v items 2>/dev/null      # wakes up a consumer, wherever it is
        n=$((n + 1))
    done
}

consumer() { # NAME SITE HOW-MANY
    KOFM_ADDR=$(address "$2")
    export KOFM_ADDR
    n=1
    while [ $n -le "$3" ]; do
        "$KOFM" sem p items 2>/dev/null      # waits while the buffer is empty
        # There is one for us; another consumer may be quicker with this one, then there is a next.
        for thing in "$buffer"/*; do
            mv "$thing" "$work/got-$1-$n" 2>/dev/null && break
        done
        [ -e "$work/got-$1-$n" ] || { echo "s$2 $1 found nothing" >&2; exit 1; }
        echo "s$2 got ${thing##*/}"
        "$KOFM" sem v slots 2>/dev/null      # a place is free, whoever waits for one
        n=$((n + 1))
    done
}

: >"$work/filled"
{
    producer red 0 & producers=$!
    producer blue 1 & producers="$producers $!"
    consumer one 2 "$ITEMS" & consumers=$!
    consumer two 0 "$ITEMS" & consumers="$consumers $!"
    for each in $producers $consumers; do
        wait "$each"
    done
} | tee "$work/out"

put=$(grep -c ' put ' "$work/out")
got=$(grep -c ' got ' "$work/out")
most=$(sort -n "$work/filled" | tail -n 1 | tr -d ' ')
[ "$put" -eq "$got" ] && [ "$most" -le $SLOTS ] || { echo "put $put, got $got, $most" >&2; exit 1; }
echo "$put put, $got got, never more than $SLOTS between"
