// Command load sends the requests of one benchmark row to a server, as fast as it answers, and reports what it saw.
//
// It reads one JSON command a line from its input and answers with lines of JSON: {"event":"begin"} once the warm-up is
// over, {"event":"end"} when the time is over, so that the caller can read CPU times at both, and then one
// {"event":"result",...}, or {"event":"failed","error":...}.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"time"
)

type command struct {
	Port        int     `json:"port"`
	Work        string  `json:"work"`
	Connections int     `json:"connections"`
	WarmSeconds float64 `json:"warm_seconds"`
	Seconds     float64 `json:"seconds"`
	Operations  int     `json:"operations"` // end after so many instead of after `seconds`
	Path        string  `json:"path"`
	Body        string  `json:"body"`   // of the request, or a line of the stream
	Status      int     `json:"status"` // that a constant request is answered with
	Size        int     `json:"size"`   // messages of a request, lines that a stream has under way
	Accept      string  `json:"accept"`
	Key         string  `json:"key"`
	Tag         string  `json:"tag"`
	Topic       string  `json:"topic"` // or stream
	Queues      int     `json:"queues"`
	Depth       int     `json:"depth"` // messages in each queue
	Group       string  `json:"group"` // the groups are called group-0, group-1, ...
	Groups      int     `json:"groups"`
}

// A window is what was seen between begin and end.
type window struct {
	operations int
	messages   int
	seconds    float64
	latencies  []time.Duration // of operations that began and ended in it
}

type report struct {
	Event      string  `json:"event"`
	Operations int     `json:"operations"`
	Messages   int     `json:"messages"`
	Seconds    float64 `json:"seconds"`
	P50Ms      float64 `json:"p50_ms"`
	P99Ms      float64 `json:"p99_ms"`
}

func main() {
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // between the runs, or where one takes more than this
	debug.SetMemoryLimit(1 << 30)
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		runtime.GC()
		var given command
		err := json.Unmarshal(commands.Bytes(), &given)
		var seen window
		if err == nil {
			seen, err = run(given)
		}
		if err != nil {
			reason, _ := json.Marshal(err.Error())
			fmt.Printf("{\"event\":\"failed\",\"error\":%s}\n", reason)
			continue
		}
		sort.Slice(seen.latencies, func(a, b int) bool { return seen.latencies[a] < seen.latencies[b] })
		line, _ := json.Marshal(report{
			"result", seen.operations, seen.messages, seen.seconds, seen.quantile(0.5), seen.quantile(0.99),
		})
		fmt.Println(string(line))
	}
}

func run(given command) (window, error) {
	if given.Work == "wake" {
		return wake(given)
	}
	plans, err := plansOf(given)
	if err != nil {
		return window{}, err
	}
	return drive(given, plans)
}

// quantile of the sorted latencies in milliseconds.
func (seen *window) quantile(share float64) float64 {
	if len(seen.latencies) == 0 {
		return 0
	}
	at := min(len(seen.latencies)-1, int(share*float64(len(seen.latencies))))
	return float64(seen.latencies[at]) / float64(time.Millisecond)
}
