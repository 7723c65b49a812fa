package config

import (
	"fmt"
	"time"
)

// minLookupInterval is the shortest interval of lookups. Package lookup limits their rate.
const minLookupInterval = time.Second

// lookupInterval parses the interval of lookups. An empty text is 0.
func lookupInterval(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	interval, err := time.ParseDuration(text)
	if err == nil && interval != 0 && interval < minLookupInterval {
		err = fmt.Errorf("%s is less than %s", interval, minLookupInterval)
	}
	return interval, err
}
