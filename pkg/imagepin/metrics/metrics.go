// Package metrics has the Prometheus metrics of a node.
package metrics

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imagepin/imagepin/pkg/imagepin/lookup"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

const namespace = "imagepin"

// Metrics counts events of one node. It implements [pull.Observer], [resolve.Observer] and the interface Observer of package pin/cluster.
type Metrics struct {
	resolves       *prometheus.CounterVec
	resolveSeconds prometheus.Histogram
	fallbacks      prometheus.CounterFunc
	pulls          *prometheus.CounterVec
	failedRepairs  prometheus.Counter
	pinEvents      *prometheus.CounterVec
	lookups        *prometheus.CounterVec
	claims         *prometheus.CounterVec
	claimSeconds   prometheus.Histogram
	notInLock      *prometheus.CounterVec

	fallbacksUsed atomic.Int64
}

var (
	_ pull.Observer    = (*Metrics)(nil)
	_ resolve.Observer = (*Metrics)(nil)
)

// New returns metrics with all counters at 0. They are not served until [Metrics.Register].
func New() *Metrics {
	m := &Metrics{
		resolves: counters("resolves_total", "Digest lookups at registries, by result.", "result", resolve.Results...),
		resolveSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "resolve_seconds",
			Help:    "Duration of digest lookups at registries.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 16), // up to a little more than a minute, the default timeout
		}),
		pulls: counters("pulls_total", "Pulls, and images made ready for pods, by what had to be done. Concurrent identical pulls count once.", "done", pull.Outcomes...),
		failedRepairs: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "failed_repairs_total",
			Help: "Repairs of images that failed.",
		}),
		pinEvents: counters("pin_events_total", "Changes of pins, by event.", "event", pin.Events...),
		lookups:   counters("lookups_total", "Lookups of pinned digests for drift and deletion, by outcome.", "outcome", lookup.Outcomes...),
		claims:    counters("claims_total", "Questions to the Kubernetes API for a pin, by outcome.", "outcome", pin.Outcomes...),
		claimSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "claim_seconds",
			Help:    "Duration of questions to the Kubernetes API for a pin.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14), // up to 8 s; the default timeout is 2 s
		}),
		notInLock: counters("not_in_lock_total",
			"Uses of images that the lock of the node does not name, by what the rule does: warn, or strict, which refuses them.",
			"locked", policy.LockedWarn, policy.LockedStrict),
	}
	m.fallbacks = prometheus.NewCounterFunc(prometheus.CounterOpts{
		Namespace: namespace, Name: "registry_fallbacks_total",
		Help: "Pulls that used the image on the node because no registry could be reached.",
	}, func() float64 { return float64(m.fallbacksUsed.Load()) })
	return m
}

// counters returns counters with a label, which are 0 for the values of the label.
func counters[V ~string](name, help, label string, values ...V) *prometheus.CounterVec {
	all := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, []string{label})
	for _, v := range values {
		all.WithLabelValues(string(v))
	}
	return all
}

// Register registers the metrics, and gauges of the state that read returns at each collection.
func (m *Metrics) Register(r prometheus.Registerer, read func() State) error {
	var errs []error
	for _, c := range []prometheus.Collector{m.resolves, m.resolveSeconds, m.fallbacks, m.pulls, m.failedRepairs, m.pinEvents, m.lookups, m.claims, m.claimSeconds, m.notInLock, collector{read}} {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}

// Resolved implements [resolve.Observer].
func (m *Metrics) Resolved(r resolve.Result, took time.Duration) {
	m.resolves.WithLabelValues(string(r)).Inc()
	m.resolveSeconds.Observe(took.Seconds())
}

// Pulled implements [pull.Observer].
func (m *Metrics) Pulled(o pull.Outcome) { m.pulls.WithLabelValues(string(o)).Inc() }

// RepairFailed implements [pull.Observer].
func (m *Metrics) RepairFailed() { m.failedRepairs.Inc() }

// FallbackUsed implements [pull.Observer].
func (m *Metrics) FallbackUsed() {
	m.fallbacksUsed.Add(1)
}

// NotInLock counts the use of an image that the lock does not name.
func (m *Metrics) NotInLock(l policy.Locked) { m.notInLock.WithLabelValues(string(l)).Inc() }

// Fallbacks returns how often a pull has used the image on the node because no registry could be reached.
func (m *Metrics) Fallbacks() int64 { return m.fallbacksUsed.Load() }

// Claimed implements the interface Observer of package pin/cluster.
func (m *Metrics) Claimed(o pin.Outcome, took time.Duration) {
	m.claims.WithLabelValues(string(o)).Inc()
	m.claimSeconds.Observe(took.Seconds())
}

// Lost implements the interface Observer of package pin/cluster.
func (m *Metrics) Lost() { m.claims.WithLabelValues(string(pin.Lost)).Inc() }

// PinEvent counts a change of a pin.
func (m *Metrics) PinEvent(e pin.Event) { m.pinEvents.WithLabelValues(string(e)).Inc() }

// LookedUp counts a lookup of a pinned digest.
func (m *Metrics) LookedUp(o lookup.Outcome) { m.lookups.WithLabelValues(string(o)).Inc() }
