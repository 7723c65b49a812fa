package config

import (
	"reflect"
	"strings"
	"testing"
)

func TestSimilarKey(t *testing.T) {
	embedded := struct {
		*Images
		UseLocalImagePull bool `toml:"use_local_image_pull"`
	}{}
	for _, c := range []struct {
		value     any
		key, want string
	}{
		{File{}, "adress", "address"},
		{&File{}, "metric", "metrics"},
		{File{}, "metrics.adress", "metrics.address"},
		{File{}, "metric.address", "metrics.address"},
		{Config{}, "retian", "retain"},
		{Config{}, "pull_behaviour", "pull_behavior"},
		{Config{}, "rules.matches", "rules.match"},
		{Config{}, "handlers.kata.isolated", ""},
		{Config{}, "handlers.kata.isolatoin", "handlers.kata.isolation"},
		{Config{}, "no_such_key", ""},
		{Config{}, "a", ""},
		{embedded, "snapshoter", "snapshotter"},
		{embedded, "registry.config_paht", "registry.config_path"},
		{embedded, "registry.mirrors.docker.io.endpoint", ""},
		{embedded, "use_local_image_pul", "use_local_image_pull"},
		{Transfer{}, "unpack_config.diffr", "unpack_config.differ"},
	} {
		if got := strings.Join(similarKey(reflect.TypeOf(c.value), strings.Split(c.key, ".")), "."); got != c.want {
			t.Errorf("%T: key similar to %q: got %q, want %q", c.value, c.key, got, c.want)
		}
	}
}
