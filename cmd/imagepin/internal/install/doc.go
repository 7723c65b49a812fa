// Package install puts imagepin on a node and removes it again, as the DaemonSets in contrib/kubernetes do.
//
// [Request.Run] runs in a container that has the node's root directory. It copies the files to the node, and lets the node's
// systemd run [Apply] as a service. So a change goes on, or is rolled back, also if the container is killed, or if no
// container can be started because containerd does not answer.
//
// [Apply] makes one change: before it touches a file it notes that in a record and keeps a copy. If the CRI or kubelet does
// not come back, or if the process was killed, it restores the copies and restarts what it has restarted. At every point,
// either the change is complete, or the record tells how to undo it.
package install
