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

// notifier tells the service manager (systemd, or whoever set NOTIFY_SOCKET) how
// far the process is.
type notifier struct{ ready bool }

func (n *notifier) send(states ...string) {
	if _, err := daemon.SdNotify(false, strings.Join(states, "\n")); err != nil {
		log.L.WithError(err).Warn("cannot notify the service manager")
	}
}

// patience is how much time the service manager is asked for again and again
// while containerd is waited for.
const patience = 30 * time.Second

// waiting says what is waited for.
func (n *notifier) waiting(what string) {
	states := []string{"STATUS=" + what}
	if !n.ready {
		states = append(states, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", patience.Microseconds()))
	}
	n.send(states...)
}

// serving says that calls are answered.
func (n *notifier) serving(status string) {
	n.ready = true
	n.send(daemon.SdNotifyReady, "STATUS="+status)
}

// reloading is followed by serving.
func (n *notifier) reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		log.L.WithError(err).Warn("cannot read the clock")
		return
	}
	n.send(daemon.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}

func (n *notifier) stopping() { n.send(daemon.SdNotifyStopping) }
