/**
 * A process that takes `count` records from a Kafka queue and never acknowledges them, until the test kills it. Arguments: address, topic prefix,
 * client type (share or classic), count.
 */
import { openKafkaBroker } from '#shared/broker/kafka/kafka.ts'

const [address = '', prefix = '', client = 'share', count = '1'] = process.argv.slice(2)
const broker = await openKafkaBroker({
  brokers: [address],
  client: client as 'share' | 'classic',
  prefix,
  topics: [{ name: 'jobs', partitions: 1, retentionMs: 3_600_000, kind: 'queue' }],
  clientId: 'holder',
  onProblem: () => undefined,
})
const queue = await broker.openQueue('jobs')
let held = 0
while (held < Number(count)) held += (await queue.take(Number(count) - held, new AbortController().signal)).length
process.stdout.write('held\n')
setInterval(() => undefined, 1_000)
