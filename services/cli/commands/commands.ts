import type { Command } from '#services/cli/command.ts'
import { completionOf } from '#services/cli/completion/completion.ts'
import { doctor } from '#services/cli/doctor/doctor.ts'
import { deadLetters } from '#services/cli/operator/dead-letters.ts'
import { deliveries } from '#services/cli/operator/deliveries.ts'
import { drain } from '#services/cli/operator/drain.ts'
import { pools, workers } from '#services/cli/operator/fleet.ts'
import { pause, resume } from '#services/cli/operator/pause.ts'
import { top } from '#services/cli/top/top.ts'
import { batch } from './batch.ts'
import { cancel } from './cancel.ts'
import { followCommand } from './follow.ts'
import { get } from './get.ts'
import { jobs } from './jobs.ts'
import { keys } from './keys.ts'
import { projects } from './projects.ts'
import { redrive } from './redrive.ts'
import { replay } from './replay.ts'
import { research } from './research.ts'
import { results } from './results.ts'
import { steps } from './steps.ts'
import { submit } from './submit.ts'
import { usage } from './usage.ts'
import { webhookSecrets } from './webhook-secrets.ts'

const BASE_COMMANDS: Readonly<Record<string, Command>> = {
  submit,
  research,
  batch,
  follow: followCommand,
  get,
  results,
  cancel,
  jobs,
  redrive,
  steps,
  replay,
  workers,
  pools,
  top,
  drain,
  pause,
  resume,
  deliveries,
  'dead-letters': deadLetters,
  projects,
  keys,
  usage,
  'webhook-secrets': webhookSecrets,
  doctor,
}

export const COMMANDS: Readonly<Record<string, Command>> = {
  ...BASE_COMMANDS,
  completion: completionOf(BASE_COMMANDS),
}
