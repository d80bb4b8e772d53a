import type { Topic } from '#shared/broker/broker.ts'
import type { QueueGroups } from '#shared/broker/kafka/broker.ts'
import type { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { committedOffsets, storedOffsets } from '#shared/broker/kafka/offsets.ts'
import { classicGroup, type KafkaOptions } from '#shared/broker/kafka/options.ts'
import { checkTopics } from '#shared/broker/kafka/topics.ts'
import { createKafkaJs } from './client.ts'
import { ClassicConsumer } from './queue.ts'
import { BrokerSockets } from './sockets.ts'

/** Default number of partitions of a queue, which is also the maximum number of workers that share the queue. */
const QUEUE_PARTITIONS = 16

/** Queues on classic consumer groups, which kafkajs reads. Used for Kafka before 4.2. */
export function classicGroups(cluster: KafkaCluster, options: KafkaOptions): QueueGroups {
  const sockets = new BrokerSockets(cluster)
  const kafka = createKafkaJs(options, sockets)
  const consumers: ClassicConsumer[] = []
  const topics = options.topics.map((topic) => withPartitions(topic, options))
  return {
    name: 'kafka (classic groups)',
    check: (admin) => checkTopics(admin, { ...options, topics }),
    consumer: (queue, topic) => {
      const consumer = new ClassicConsumer(kafka, cluster, queue, topic, options)
      consumers.push(consumer)
      return consumer
    },
    lag: (topic) => readLag(cluster, topic),
    recreated: (topic) => {
      for (const consumer of consumers) if (consumer.topic === topic) consumer.restart()
    },
    close: () => sockets.close(),
  }
}

/** Raises the number of partitions of a queue. Each partition has one owner, so workers in excess of the partitions would be idle. */
function withPartitions(topic: Topic, { queuePartitions = QUEUE_PARTITIONS }: KafkaOptions): Topic {
  if (topic.kind === 'channel' || topic.partitions >= queuePartitions) return topic
  return { ...topic, partitions: queuePartitions, partitionsMin: topic.partitions }
}

async function readLag(cluster: KafkaCluster, topic: string): Promise<number> {
  const committed = await committedOffsets(cluster, classicGroup(topic), topic)
  const lags = Array.from({ length: cluster.partitions(topic) }, async (_, partition) => {
    const { first, end } = await storedOffsets(cluster, topic, partition)
    return end - Math.max(first, committed.get(partition) ?? 0)
  })
  return (await Promise.all(lags)).reduce((sum, lag) => sum + lag, 0)
}
