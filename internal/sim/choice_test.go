package sim

import (
	"math/rand/v2"
	"time"
)

// choice is the content of a history.
type choice struct {
	consistency string
	retain      bool
	behavior    string
	discard     bool
	socket      bool // imagepin runs in a separate process, and a kill ends only one of it and containerd
	slowGC      time.Duration
	before      []string // actions that run first, one after the other
	actors      []string // actions that run concurrently
	kill        bool
	reconfigure bool     // after the kill, handler foreign has another snapshotter
	refs        []string // references in this history
	expire      bool     // pins are swept concurrently
	refuse      string   // the build that the image verifier rejects, or ""
	cap         int      // maximum number of pins of a namespace; zero means the default
	walking     bool     // layers are unpacked while they are downloaded
	drip        bool     // a tenant pulls images of a slow registry
	locks       bool     // locks are applied
	private     bool     // a tenant pulls a private image under many names and credentials
}

func choose(rng *rand.Rand) choice {
	pick := func(all ...string) string { return all[rng.IntN(len(all))] }
	c := choice{
		consistency: pick("off", "off", "node", "workload"),
		behavior:    pick("default", "default", "default", "always", "once", "prefer-cached"),
		discard:     rng.IntN(5) == 0,
		socket:      rng.IntN(3) == 0,
		kill:        rng.IntN(3) == 0,
	}
	c.refs = []string{app + ":1", app + ":1", app + ":1", app + ":2", app + ":2", app + ":3", other + ":1", other + ":2"}
	switch rng.IntN(3) {
	case 0:
		c.refs = []string{app + ":1", app + ":1", app + ":3"}
	case 1:
		c.refs = []string{app + ":1", app + ":2"}
	}
	c.retain = c.consistency != "off" && rng.IntN(3) > 0
	if rng.IntN(12) == 0 {
		c.slowGC, c.kill = 20*time.Second, false
	}
	for range rng.IntN(3) {
		c.before = append(c.before, pick("pull", "pull", "pod", "ctr-pull", "pod-ends"))
	}
	if c.consistency != "off" && rng.IntN(5) == 0 {
		c.expire, c.before = true, append(c.before, "pod", "pull")
	}
	calm := rng.IntN(3) == 0 // only kubelet, crictl, and moves of tags
	for range 2 + rng.IntN(4) {
		if c.expire || c.consistency != "off" && rng.IntN(4) == 0 {
			c.actors = append(c.actors, pick("pod", "pod", "pull", "pin", "unpin", "refresh", "move", "image-gc"))
			continue
		}
		if calm {
			c.actors = append(c.actors, pick("pod", "pod", "pull", "pull", "image-gc", "crictl-rmi", "move"))
			continue
		}
		c.actors = append(c.actors, pick(
			"pod", "pod", "pod", "pull", "pull", "image-gc", "crictl-rmi", "crictl-rmi", "move", "fail", "ctr-pull", "ctr-pull", "ctr-rm", "ctr-tag", "gc", "gc", "pod-ends", "lose-track", "reload", "pin", "unpin", "refresh", "repair"))
	}
	if rng.IntN(8) == 0 {
		c.refuse = pick("B", "C")
	}
	if c.consistency != "off" && rng.IntN(5) == 0 {
		c.cap = 1
	}
	if rng.IntN(4) == 0 {
		c.repeatFailure(rng)
	}
	c.walking = !c.socket && rng.IntN(2) == 0
	if rng.IntN(8) == 0 {
		c.drip, c.slowGC, c.expire = true, 0, false
		c.actors = append([]string{"slow-pull", "slow-pull"}, c.actors...)
		c.actors = append(c.actors, pick("pull app:3 runc", "pull app:1 second", "pod app:3 runc", "image-gc"))
	}
	// These take longer than others, so there are fewer.
	if rng.IntN(64) == 0 {
		c.withLocks(rng)
	}
	if rng.IntN(128) == 0 || c.locks && rng.IntN(8) == 0 {
		c.withManyNames(rng)
	}
	return c
}

// withLocks adds applies of locks, and what ends them, in half of the cases beside a registry that is slow.
func (c *choice) withLocks(rng *rand.Rand) {
	pick := func(all ...string) string { return all[rng.IntN(len(all))] }
	c.locks, c.consistency, c.retain, c.expire, c.cap, c.slowGC = true, "off", false, false, 0, 0
	c.kill = rng.IntN(2) == 0
	c.before, c.actors = c.before[:min(len(c.before), 1)], c.actors[:2]
	for range rng.IntN(3) {
		c.before = append(c.before, "apply "+pick("one", "two"))
	}
	if c.drip = c.drip || rng.IntN(2) == 0; c.drip {
		c.actors = append(c.actors, pick("slow-pull", "gc"), pick("apply slow", "apply slow detached", "apply slow detached"))
	}
	c.actors = append(c.actors, pick("apply one", "apply two", "pull"), "look")
	for range 1 + rng.IntN(3) {
		c.actors = append(c.actors, pick("rollback", "rollback", "lock-rm", "apply-cancel", "apply one", "apply two detached", "pod app:1 runc"))
	}
	rng.Shuffle(len(c.actors), func(i, j int) { c.actors[i], c.actors[j] = c.actors[j], c.actors[i] })
}

// withManyNames adds a user of a private image, and a tenant that pulls it under many names.
func (c *choice) withManyNames(rng *rand.Rand) {
	c.private, c.slowGC = true, 0
	c.before = append(c.before, "user-starts")
	if c.locks {
		c.actors = append(c.actors, "apply private", "many-names")
	} else {
		c.actors = append(c.actors[:2], "many-names")
	}
}

// repeatFailure makes the history a variation of one that failed before.
func (c *choice) repeatFailure(rng *rand.Rand) {
	c.consistency, c.retain, c.behavior, c.expire, c.slowGC = "off", false, "default", false, 0
	c.refuse, c.cap = "", 0
	switch rng.IntN(11) {
	case 0: // adoption of an image that another tool has tagged, during a pull of that tag
		c.before = []string{"pull app:3 runc", "pull app:2 runc"}
		c.actors = []string{"ctr-tag app:2 app:1", "move app:1 B", "pull app:1 runc"}
	case 1: // images are listed again during calls
		c.before = []string{"pull app:3 runc", "ctr-pull app:1"}
		c.actors = []string{"lose-track", "move app:1 B", "pull app:1 runc", "image-gc", "crictl-rmi app:1", "ctr-pull app:2"}
		rng.Shuffle(len(c.actors), func(i, j int) { c.actors[i], c.actors[j] = c.actors[j], c.actors[i] })
		c.actors = c.actors[:4]
	case 2: // removal of an adopted image during the start of a pod
		c.before = []string{"ctr-pull app:1"}
		c.kill = false
		c.actors = []string{"pod app:1 runc", "crictl-rmi app:1", "pod app:1 runc", "image-gc", "gc"}
		c.actors = c.actors[:2+rng.IntN(4)]
	case 3: // a workload is pinned to the previous digest of its tag
		c.consistency = "workload"
		c.before = []string{"pod app:1 runc", "move app:1 B", "pull app:1 runc"}
		c.actors = []string{"pod app:1 runc", "pod app:1 runc", "pod app:1 second", "crictl-rmi app:1"}
		c.actors = c.actors[:2+rng.IntN(3)]
	case 4: // a namespace reaches its limit of pins
		c.consistency, c.cap = "workload", 1
		c.before = []string{"pod app:1 runc", "pod-ends"}
		c.actors = []string{"pod app:1 runc", "pod app:1 runc", "pod app:3 runc", "pod-ends", "image-gc"}
		c.actors = c.actors[:3+rng.IntN(3)]
	case 5: // a pin with retain is set while another key of its digest is recorded
		c.actors = []string{"pin app:1 A", "pull app:1 runc", "pull app:2 second", "ctr-pull app:2"}
		c.actors = c.actors[:2+rng.IntN(3)]
	case 6: // containerd's CRI writes the record of an image ID while the image is removed
		c.before = []string{"pull app:1 runc"}
		c.actors = []string{"ctr-tag app:1 app:2", "crictl-rmi app:1", "image-gc", "crictl-rmi app:2", "ctr-pull app:2"}
		c.actors = c.actors[:2+rng.IntN(4)]
	case 7: // an operator pins a tag to an image that the verifier rejects, during its first use
		c.consistency, c.refuse = "node", "B"
		c.actors = []string{"pin app:1 B", "pull app:1 runc", "pod app:1 runc", "pull app:1 second"}
		c.actors = c.actors[:2+rng.IntN(3)]
	case 8: // removal of an image during the first pull of another of its tags
		c.before = []string{"pull app:1 runc"}
		c.actors = []string{"crictl-rmi app:1", "pull app:2 runc", "pod app:2 runc", "image-gc", "gc"}
		c.actors = c.actors[:2+rng.IntN(4)]
	case 9: // slow garbage collection of retained content, while other content is retained
		c.consistency, c.retain, c.slowGC, c.kill = "node", true, 20*time.Second, false
		c.before = []string{"pull app:1 runc"}
		c.actors = []string{"pin app:1 B", "pull app:3 runc", "pull app:1 second"}
		c.actors = c.actors[:2+rng.IntN(2)]
	case 10: // pins are made, moved and removed while they are read again
		c.consistency, c.retain, c.kill = "node", true, false
		c.before = []string{"pull app:2 runc"}
		c.actors = []string{"reload", "pin app:1 A", "pull app:3 runc", "pin app:2 B", "unpin", "reload"}
		c.actors = c.actors[:3+rng.IntN(4)]
	}
}
