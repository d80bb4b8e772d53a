import type { KafkaConfig } from '#shared/config/config.ts'
import { inspectKafka } from '#shared/ports/inspect.ts'
import { type Check, type Finding, failed, ok, skipped, warned } from './check.ts'

/** Kafka, where KAFKA_BROKERS names one: there, new enough, with share groups, with its topics. */
export const kafkaCheck: Check = {
  name: 'kafka',
  fix: 'Start Kafka, or mend KAFKA_BROKERS, KAFKA_TLS or the KAFKA_SASL_MECHANISM, KAFKA_USERNAME and KAFKA_PASSWORD.',
  async run(config) {
    const { kafka } = config
    if (!kafka) return [skipped('kafka', 'not needed: without KAFKA_BROKERS the queue lives in the process')]
    const { brokers, missing, hasShareGroups } = await inspectKafka(config, kafka)
    const made = missing.length > 0 ? `; ${missing.length} topics are made at the next start` : ''
    return [groupsFinding(kafka, hasShareGroups, `${brokers} ${brokers === 1 ? 'broker' : 'brokers'}${made}`)]
  },
}

function groupsFinding({ client }: KafkaConfig, hasShare: boolean, brokers: string): Finding {
  if (client === 'classic') return ok('kafka', `${brokers}; classic groups, as KAFKA_CLIENT says`)
  if (hasShare) return ok('kafka', `${brokers}; 4.2 or later, with share groups`)
  const fix = 'Upgrade to Kafka 4.2 or later, then: kafka-features.sh upgrade --feature share.version=1'
  if (client === 'share') return failed('kafka', `${brokers}; no share groups, but KAFKA_CLIENT=share`, fix)
  return warned('kafka', `${brokers}; no share groups, so the weaker classic groups are used`, fix)
}
