//go:build unix

// Package serve runs imagepin beside a containerd that knows nothing of it: it serves the CRI on a socket of its own and
// works on containerd over containerd's socket.
//
// A [Server] lives longer than what it serves. Whenever containerd has gone, has come back, or the configuration is read
// again, another [node.Service] is put in its place, which knows what the one before knew; calls that have begun go on.
// While containerd cannot be reached, every call is answered with Unavailable, as containerd's own socket would; while the
// index is built, calls wait.
package serve
