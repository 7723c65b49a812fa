// Package metrics has imagepin's Prometheus metrics. They are served with
// containerd's own, on its metrics address.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "imagepin"

// Result is how a question to a registry ended.
type Result string

// The results of a resolve.
const (
	Resolved    Result = "resolved"
	Denied      Result = "denied"
	NotFound    Result = "not_found"
	Unavailable Result = "unavailable"
	Failed      Result = "failed"
	// GivenUp is a question whose callers had all gone before its answer.
	GivenUp Result = "canceled"
)

// Done is what a pull had to do.
type Done string

// What a pull can have done.
const (
	Nothing  Done = "nothing"
	Recorded Done = "recorded"
	Unpacked Done = "unpacked"
	Fetched  Done = "fetched"
	Error    Done = "failed"
	// Canceled is a pull whose callers had all gone before its end.
	Canceled Done = "canceled"
)

var (
	resolves = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "resolves_total",
		Help: "Questions to registries which digest a reference means, by result.",
	}, []string{"result"})
	resolveSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Name: "resolve_seconds",
		Help:    "How long registries took to say which digest a reference means.",
		Buckets: prometheus.ExponentialBuckets(0.002, 2, 16), // to a little more than a minute, the default timeout
	})
	fallbacks = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "registry_fallbacks_total",
		Help: "Pulls that used what was on the node because no registry could be reached.",
	})
	pulls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "pulls_total",
		Help: "Pulls, and images made ready for what needed them, by what had to be done. Equal ones at one time are one.",
	}, []string{"done"})
	pinEvents = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "pin_events_total",
		Help: "What happened to pins: made, moved, removed, expired, evicted, drift.",
	}, []string{"event"})
)

func init() {
	prometheus.MustRegister(resolves, resolveSeconds, fallbacks, pulls, pinEvents)
	// What has not happened yet is 0, not unknown.
	for _, r := range []Result{Resolved, Denied, NotFound, Unavailable, Failed, GivenUp} {
		resolves.WithLabelValues(string(r))
	}
	for _, d := range []Done{Nothing, Recorded, Unpacked, Fetched, Error, Canceled} {
		pulls.WithLabelValues(string(d))
	}
	for _, event := range []string{"made", "moved", "removed", "expired", "evicted", "drift"} {
		pinEvents.WithLabelValues(event)
	}
}

// Resolve counts a question to a registry.
func Resolve(r Result, took time.Duration) {
	resolves.WithLabelValues(string(r)).Inc()
	resolveSeconds.Observe(took.Seconds())
}

// Fallback counts a pull that did without the registry.
func Fallback() { fallbacks.Inc() }

// Pull counts a pull.
func Pull(d Done) { pulls.WithLabelValues(string(d)).Inc() }

// PinEvent counts what happened to a pin.
func PinEvent(event string) { pinEvents.WithLabelValues(event).Inc() }

// State is what there is on the node now.
type State struct {
	// Keys are the keys that are ready, by target.
	Keys map[Target]int
	// Pins are the pins, by kind of scope: node or workload.
	Pins map[string]int
	// Drifted are the pins whose tag has moved away.
	Drifted int
	// RetainedBytes is what pins retain.
	RetainedBytes int64
}

// Target labels the keys.
type Target struct{ Platform, Snapshotter string }

// Register serves the state of the node that read gives when asked.
func Register(read func() State) error {
	return prometheus.Register(collector{read: read})
}

type collector struct{ read func() State }

var (
	keysDesc     = prometheus.NewDesc(namespace+"_keys", "Keys that are ready, by target.", []string{"platform", "snapshotter"}, nil)
	pinsDesc     = prometheus.NewDesc(namespace+"_pins", "Pins, by kind of scope.", []string{"scope"}, nil)
	driftDesc    = prometheus.NewDesc(namespace+"_pins_drifted", "Pins whose tag has moved away in the registry.", nil, nil)
	retainedDesc = prometheus.NewDesc(namespace+"_retained_bytes", "Bytes that pins retain, as registries have them.", nil, nil)
)

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{keysDesc, pinsDesc, driftDesc, retainedDesc} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.read()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for t, n := range s.Keys {
		gauge(keysDesc, float64(n), t.Platform, t.Snapshotter)
	}
	for scope, n := range s.Pins {
		gauge(pinsDesc, float64(n), scope)
	}
	gauge(driftDesc, float64(s.Drifted))
	gauge(retainedDesc, float64(s.RetainedBytes))
}
