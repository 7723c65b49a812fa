// Package registry reads images from registries, without containerd and without root. It uses the same hosts.toml
// directories as containerd, and the credentials of docker's configuration.
package registry
