// Package imagerefs finds image references in Kubernetes manifests, compose files and plain lists. It uses no network.
//
// In YAML and JSON it finds the images of each pod spec, wherever it is: a mapping with a list containers. So it knows all
// workload kinds, lists of them, and custom resources with an embedded pod template. A pod spec's images are those of
// containers, initContainers, ephemeralContainers and of image volumes. In a compose file they are those of the services. A
// plain list has one reference in each line, and comments after #.
package imagerefs
