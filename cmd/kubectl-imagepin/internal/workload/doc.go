// Package workload is the model of pods that the commands share: which revision of a workload owns a pod, which images
// its containers name, and which digests they run. It reads objects and sends no requests.
package workload
