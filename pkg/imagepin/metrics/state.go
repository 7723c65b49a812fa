package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// State is the current state of a node.
type State struct {
	// Keys is the number of ready keys by target.
	Keys map[Target]int
	// Pins is the number of pins by kind of scope: node or workload.
	Pins map[string]int
	// Drifted is the number of pins whose tag has moved in the registry.
	Drifted int
	// Gone is the number of pins whose digest their registry no longer has.
	Gone int
	// OldestDrift is when the first of these tags has moved. It is zero without drift.
	OldestDrift time.Time
	// NamespacePins is the number of pins of the Kubernetes namespace that has most, or of the node itself, and
	// NamespacePinsLimit is how many each may have. The limit is 0 if there is none.
	NamespacePins, NamespacePinsLimit int
	// Provisional is the number of pins that are to be claimed in the cluster.
	Provisional int
	// RetainedBytes is the size of the content that pins retain, in bytes, compressed as in the registry.
	RetainedBytes int64
	// RetainedBytesLimit is the maximum of RetainedBytes. It is 0 if there is none.
	RetainedBytesLimit int64
	// Lock is the state of the node's lock.
	Lock Lock
	// Pulls is the number of pulls in progress, and PullsLeft the number of bytes that they will receive, as far as known.
	Pulls, PullsLeft int64
	// Reconcile is how long the last build of the index took. It is 0 before the first.
	Reconcile time.Duration
}

// Lock is the state of a node's lock. It is zero without a lock.
type Lock struct {
	// Digest identifies the lock.
	Digest string
	// AppliedAt is when it was applied.
	AppliedAt time.Time
	// Images is the number of images of the lock, and Ready of those that are ready.
	Images, Ready int64
	// Drifted is the number of containers that run another digest than the lock.
	Drifted int64
	// Failed reports that the last apply has failed.
	Failed bool
}

// Target has the labels of the gauge of keys.
type Target struct{ Platform, Snapshotter string }

// collector collects the state that read returns.
type collector struct{ read func() State }

var (
	keysDesc               = prometheus.NewDesc(namespace+"_keys", "Keys that are ready, by target.", []string{"platform", "snapshotter"}, nil)
	pinsDesc               = prometheus.NewDesc(namespace+"_pins", "Pins, by kind of scope.", []string{"scope"}, nil)
	driftDesc              = prometheus.NewDesc(namespace+"_pins_drifted", "Pins whose tag has moved away in the registry.", nil, nil)
	goneDesc               = prometheus.NewDesc(namespace+"_pins_gone", "Pins whose digest their registry no longer has, at the last lookup.", nil, nil)
	oldestDriftDesc        = prometheus.NewDesc(namespace+"_pins_oldest_drift_timestamp_seconds", "When the tag of the pin with the oldest drift moved, in seconds since the epoch; 0 without drift.", nil, nil)
	namespacePinsDesc      = prometheus.NewDesc(namespace+"_namespace_pins", "Pins of the Kubernetes namespace that has most, or of the node itself.", nil, nil)
	namespacePinsLimitDesc = prometheus.NewDesc(namespace+"_namespace_pins_limit", "Pins that each Kubernetes namespace, and the node itself, may have; 0 without limit.", nil, nil)
	provisionalDesc        = prometheus.NewDesc(namespace+"_pins_provisional", "Pins that are not claimed in the Kubernetes API yet.", nil, nil)
	retainedDesc           = prometheus.NewDesc(namespace+"_retained_bytes", "Bytes that pins retain, compressed as in the registry.", nil, nil)
	retainedLimitDesc      = prometheus.NewDesc(namespace+"_retained_limit_bytes", "Bytes that pins may retain; 0 without limit.", nil, nil)
	lockInfoDesc           = prometheus.NewDesc(namespace+"_lock_info", "The lock of the node; always 1.", []string{"digest"}, nil)
	lockAppliedDesc        = prometheus.NewDesc(namespace+"_lock_applied_timestamp_seconds", "When the lock of the node was applied, in seconds since the epoch; 0 without a lock.", nil, nil)
	lockImagesDesc         = prometheus.NewDesc(namespace+"_lock_images", "Images of the lock, by state: ready, or missing.", []string{"state"}, nil)
	lockDriftedDesc        = prometheus.NewDesc(namespace+"_lock_drifted_containers", "Containers that run another digest than the lock has for their reference.", nil, nil)
	lockFailedDesc         = prometheus.NewDesc(namespace+"_lock_apply_failed", "1 if the last lock was not applied, otherwise 0.", nil, nil)
	pullsDesc              = prometheus.NewDesc(namespace+"_pulls_running", "Pulls in progress.", nil, nil)
	pullsLeftDesc          = prometheus.NewDesc(namespace+"_pulls_left_bytes", "Bytes that the pulls in progress will receive, as far as they are known.", nil, nil)
	reconcileDesc          = prometheus.NewDesc(namespace+"_reconcile_seconds", "Duration of the last build of the index.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		keysDesc, pinsDesc, driftDesc, goneDesc, oldestDriftDesc, namespacePinsDesc, namespacePinsLimitDesc, provisionalDesc, retainedDesc,
		retainedLimitDesc, reconcileDesc, lockInfoDesc, lockAppliedDesc, lockImagesDesc, lockDriftedDesc, lockFailedDesc,
		pullsDesc, pullsLeftDesc,
	} {
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
	gauge(goneDesc, float64(s.Gone))
	oldest := 0.0
	if !s.OldestDrift.IsZero() {
		oldest = float64(s.OldestDrift.Unix())
	}
	gauge(oldestDriftDesc, oldest)
	gauge(namespacePinsDesc, float64(s.NamespacePins))
	gauge(namespacePinsLimitDesc, float64(s.NamespacePinsLimit))
	gauge(provisionalDesc, float64(s.Provisional))
	gauge(retainedDesc, float64(s.RetainedBytes))
	gauge(retainedLimitDesc, float64(s.RetainedBytesLimit))
	gauge(reconcileDesc, s.Reconcile.Seconds())
	gauge(pullsDesc, float64(s.Pulls))
	gauge(pullsLeftDesc, float64(s.PullsLeft))
	s.Lock.collect(gauge)
}

// collect reports the gauges of a lock.
func (l Lock) collect(gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	applied, failed := 0.0, 0.0
	if l.Digest != "" {
		gauge(lockInfoDesc, 1, l.Digest)
		applied = float64(l.AppliedAt.Unix())
	}
	if l.Failed {
		failed = 1
	}
	gauge(lockAppliedDesc, applied)
	gauge(lockImagesDesc, float64(l.Ready), "ready")
	gauge(lockImagesDesc, float64(l.Images-l.Ready), "missing")
	gauge(lockDriftedDesc, float64(l.Drifted))
	gauge(lockFailedDesc, failed)
}
