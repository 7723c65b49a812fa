// Package config reads the configuration of imagepin: its own section, and the sections of containerd's CRI plugins
// that it uses. It does no I/O.
//
// A [Table] is the imagepin section as decoded from a file; [Table.Check] converts it to [Settings]. [CRI] is the
// configuration of containerd's CRI plugins. As a plugin of containerd, imagepin reads it from these plugins. As a
// separate process, imagepin reads it from the running containerd and a [File].
//
// Errors are ErrInvalidArgument and name the section and the key.
package config
