import type { KafkaConfig } from '#shared/config/config.ts'
import { inspectKafka } from '#shared/ports/inspect.ts'
import { type Check, type Finding, failed, ok, skipped, warned } from './check.ts'

/** Checks Kafka, if KAFKA_BROKERS is set: the version, share groups, topics and the failover time. */
export const kafkaCheck: Check = {
  name: 'kafka',
  remediation:
    'Start Kafka, or correct the settings KAFKA_BROKERS, KAFKA_TLS, KAFKA_SASL_MECHANISM, KAFKA_USERNAME and KAFKA_PASSWORD.',
  async run(config) {
    const { kafka } = config
    if (!kafka) return [skipped('kafka', 'not needed: without KAFKA_BROKERS the queue is in memory')]
    const { brokers, topics, missing, hasShareGroups, lateFailover } = await inspectKafka(config, kafka)
    const made = missing.length === topics ? '; topics are created at the first start' : ''
    return [
      groupsFinding(kafka, hasShareGroups, `${brokers} ${brokers === 1 ? 'broker' : 'brokers'}${made}`),
      ...(missing.length > 0 && !made ? [missingFinding(missing)] : []),
      ...(lateFailover ? [warned('kafka', lateFailover.problem, lateFailover.remediation)] : []),
    ]
  },
}

function missingFinding(missing: readonly string[]): Finding {
  const message = `missing topics: ${missing.join(', ')}`
  const remediation =
    'A running process creates the topics within seconds. If topics stay missing, the log of that process has the reason.'
  return warned('kafka', message, remediation)
}

function groupsFinding({ client }: KafkaConfig, hasShare: boolean, brokers: string): Finding {
  if (client === 'classic') return ok('kafka', `${brokers}; classic consumer groups, as set by KAFKA_CLIENT`)
  if (hasShare) return ok('kafka', `${brokers}; Kafka 4.2 or later, with share groups`)
  const remediation =
    'Upgrade to Kafka 4.2 or later. Then run: kafka-features.sh --bootstrap-server HOST:PORT upgrade --feature share.version=1'
  if (client === 'share') return failed('kafka', `${brokers}; no share groups, but KAFKA_CLIENT=share`, remediation)
  return warned(
    'kafka',
    `${brokers}; no share groups, so workers use classic consumer groups, which stop briefly when a worker starts or stops`,
    remediation,
  )
}
