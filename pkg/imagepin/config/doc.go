// Package config reads what imagepin is configured with: its own section, and
// those of containerd's CRI plugins that it heeds. It does no I/O.
//
// A [Table] is our section as it stands in a file; [Table.Check] makes it
// [Settings]. [CRI] is what containerd's CRI plugins are configured with: in
// containerd it is read from the plugins, beside it from the running containerd
// and a [File].
//
// Errors are ErrInvalidArgument and name section and key.
package config
