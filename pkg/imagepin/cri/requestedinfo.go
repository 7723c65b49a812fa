package cri

import (
	"encoding/json"
	"slices"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// restoreInfo replaces the image IDs in the verbose part of a container's status by the names in the request. Upstream
// writes its request there, as JSON. restoreInfo does not change what it cannot read.
func restoreInfo(info map[string]string) {
	const key = "info"
	if !slices.ContainsFunc(ownAnnotations, func(annotation string) bool { return strings.Contains(info[key], annotation) }) {
		return
	}
	restored, err := edited([]byte(info[key]), "config", func(config json.RawMessage) (json.RawMessage, error) {
		config, err := edited(config, "image", restoredSpec)
		if err != nil {
			return nil, err
		}
		return edited(config, "mounts", restoredMounts)
	})
	if err == nil {
		info[key] = string(restored)
	}
}

// edited changes the value of a key of a JSON object, if it has the key.
func edited(object json.RawMessage, key string, edit func(json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(object, &values); err != nil {
		return nil, err
	}
	value, ok := values[key]
	if !ok {
		return object, nil
	}
	value, err := edit(value)
	if err != nil {
		return nil, err
	}
	values[key] = value
	return json.Marshal(values)
}

func restoredSpec(text json.RawMessage) (json.RawMessage, error) {
	var spec *runtime.ImageSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, err
	}
	restoreName(spec)
	return json.Marshal(spec)
}

func restoredMounts(text json.RawMessage) (json.RawMessage, error) {
	var mounts []json.RawMessage
	if err := json.Unmarshal(text, &mounts); err != nil {
		return nil, err
	}
	for i := range mounts {
		var err error
		if mounts[i], err = edited(mounts[i], "image", restoredSpec); err != nil {
			return nil, err
		}
	}
	return json.Marshal(mounts)
}
