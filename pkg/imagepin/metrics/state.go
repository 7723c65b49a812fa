package metrics

import "github.com/prometheus/client_golang/prometheus"

// State is what there is on a node now.
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

// collector serves the state that read returns.
type collector struct{ read func() State }

var (
	keysDesc     = prometheus.NewDesc(namespace+"_keys", "Keys that are ready, by target.", []string{"platform", "snapshotter"}, nil)
	pinsDesc     = prometheus.NewDesc(namespace+"_pins", "Pins, by kind of scope.", []string{"scope"}, nil)
	driftDesc    = prometheus.NewDesc(namespace+"_pins_drifted", "Pins whose tag has moved away in the registry.", nil, nil)
	retainedDesc = prometheus.NewDesc(namespace+"_retained_bytes", "Bytes that pins retain, compressed as in the registry.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{keysDesc, pinsDesc, driftDesc, retainedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
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
