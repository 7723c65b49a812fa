// Package version says which imagepin this is.
package version

// Version is the version of imagepin, as RELEASES.md lists them.
const Version = "0.1.0-dev"
