package metrics

import "github.com/prometheus/client_golang/prometheus"

// State is the current state of a node.
type State struct {
	// Keys is the number of ready keys by target.
	Keys map[Target]int
	// Pins is the number of pins by kind of scope: node or workload.
	Pins map[string]int
	// Drifted is the number of pins whose tag has moved in the registry.
	Drifted int
	// Provisional is the number of pins that are to be claimed in the cluster.
	Provisional int
	// RetainedBytes is the size of the content that pins retain, in bytes, compressed as in the registry.
	RetainedBytes int64
}

// Target has the labels of the gauge of keys.
type Target struct{ Platform, Snapshotter string }

// collector collects the state that read returns.
type collector struct{ read func() State }

var (
	keysDesc        = prometheus.NewDesc(namespace+"_keys", "Keys that are ready, by target.", []string{"platform", "snapshotter"}, nil)
	pinsDesc        = prometheus.NewDesc(namespace+"_pins", "Pins, by kind of scope.", []string{"scope"}, nil)
	driftDesc       = prometheus.NewDesc(namespace+"_pins_drifted", "Pins whose tag has moved away in the registry.", nil, nil)
	provisionalDesc = prometheus.NewDesc(namespace+"_pins_provisional", "Pins that are not claimed in the Kubernetes API yet.", nil, nil)
	retainedDesc    = prometheus.NewDesc(namespace+"_retained_bytes", "Bytes that pins retain, compressed as in the registry.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{keysDesc, pinsDesc, driftDesc, provisionalDesc, retainedDesc} {
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
	gauge(provisionalDesc, float64(s.Provisional))
	gauge(retainedDesc, float64(s.RetainedBytes))
}
