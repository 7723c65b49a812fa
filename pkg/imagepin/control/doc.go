// Package control serves imagepin's API for operators. It is on the same socket as the CRI, because it shares the keys,
// the pins and the locks of that process. The API is defined in api/imagepin/v1.
package control
