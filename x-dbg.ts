import { KafkaCluster } from '#shared/broker/kafka-cluster.ts'
import { KafkaProducer } from '#shared/broker/kafka-producer.ts'
import * as k from '@platformatic/kafka'
const o: any = { brokers: ['127.0.0.1:27440'], clientId: 'x', onProblem: console.log }
const a = new k.Admin({ clientId: 'a', bootstrapBrokers: o.brokers }); const topic = 't' + Date.now(); await a.createTopics({ topics: [topic], partitions: 1, replicas: 1 }); await a.close()
const c = new KafkaCluster(o); await c.follow([topic]); console.log(c.leader(topic, 0))
const p = new KafkaProducer(c)
console.log(await p.produce([{ topic, partition: 0, records: [{ key: undefined, value: Buffer.from('x') }] }]))
process.exit()
