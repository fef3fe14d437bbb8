// Print the committed changes of a topic: go run . BOOTSTRAP REGISTRY TOPIC GROUP
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

func main() {
	bootstrap, registry, topic, group := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	ctx := context.Background()
	schemas, err := sr.NewClient(sr.URLs(registry))
	check(err)
	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		// A group without offsets begins with the first record.
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// Without it you see rows that are in doubt or rolled back.
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	check(err)
	known := map[int]avro.Schema{}
	for {
		fetches := consumer.PollFetches(ctx)
		check(fetches.Err())
		for _, message := range fetches.Records() {
			if message.Value == nil {
				continue // the tombstone behind a delete
			}
			id, data, err := new(sr.ConfluentHeader).DecodeID(message.Value)
			check(err)
			if known[id] == nil {
				text, err := schemas.SchemaByID(ctx, id)
				check(err)
				known[id], err = avro.Parse(text.Schema)
				check(err)
			}
			var change map[string]any
			check(avro.Unmarshal(known[id], data, &change))
			// c insert, u update, d delete, r loaded row, t truncate (no row)
			row := change["after"]
			if row == nil {
				row = change["before"]
			}
			shown, err := json.Marshal(row)
			check(err)
			fmt.Println(change["op"], string(shown))
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
