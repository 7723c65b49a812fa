//go:build unix

// Package serve runs imagepin as a separate process, with a containerd that does not have the imagepin plugin. It
// serves the CRI on its own socket, and uses containerd through containerd's socket.
//
// A [Server] runs as long as the process. When containerd comes back, or the configuration is read again, the server
// reloads its [node.Service]. Calls in progress continue. While containerd is not reachable, every call fails with
// Unavailable, as on containerd's own socket. While the index is built, calls wait.
package serve
