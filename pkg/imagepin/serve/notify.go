//go:build unix

package serve

import (
	"fmt"
	"strings"
	"time"

	"github.com/containerd/log"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// notifier reports the state of the process to the service manager (systemd, or another process that set
// NOTIFY_SOCKET).
type notifier struct{ ready bool }

func (n *notifier) send(states ...string) {
	if _, err := daemon.SdNotify(false, strings.Join(states, "\n")); err != nil {
		log.L.WithError(err).Warn("cannot notify the service manager")
	}
}

// startTimeoutExtension is how much more time is requested from the service manager, repeatedly, while imagepin waits
// for containerd.
const startTimeoutExtension = 30 * time.Second

// waiting reports that the process is not answering calls.
func (n *notifier) waiting(status string) {
	states := []string{"STATUS=" + status}
	if !n.ready {
		states = append(states, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", startTimeoutExtension.Microseconds()))
	}
	n.send(states...)
}

// serving reports that calls are answered.
func (n *notifier) serving(status string) {
	n.ready = true
	n.send(daemon.SdNotifyReady, "STATUS="+status)
}

// reloading reports that the configuration is being reloaded. It is followed by serving.
func (n *notifier) reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		log.L.WithError(err).Warn("cannot read the clock")
		return
	}
	n.send(daemon.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}

func (n *notifier) stopping() { n.send(daemon.SdNotifyStopping) }
