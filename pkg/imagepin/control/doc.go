// Package control serves what an operator sees and steers, beside the CRI on
// the same socket: it shares the keys, the pins and the locks of the process
// that owns them. The contract is api/imagepin/v1.
package control
