import type { Config } from '#shared/config/config.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { startCode } from './code/code.ts'
import { startEmbeddings } from './embeddings/embeddings.ts'
import { startInference } from './inference/inference.ts'
import { requirePort, startIngress } from './ingress/ingress.ts'
import { startScheduler } from './scheduler/scheduler.ts'
import { startTranscription } from './transcription/transcription.ts'

/**
 * Every service by its role, in the order in which they start: workers before the ingress, so that the first call finds
 * one. The only place that sees them all.
 */
export const SERVICES: Readonly<Record<string, (ports: Ports) => Promise<Service>>> = {
  inference: startInference,
  embeddings: startEmbeddings,
  transcription: startTranscription,
  code: startCode,
  scheduler: startScheduler,
  ingress: startIngress,
}

/** What must hold before anything of a role is made, by role. They throw what the role would throw later. */
export const NEEDS: Readonly<Record<string, (config: Config) => Promise<void>>> = { ingress: requirePort }
