import type { Command } from '#services/cli/command.ts'
import { doctor } from '#services/cli/doctor/doctor.ts'
import { cancel } from './cancel.ts'
import { followCommand } from './follow.ts'
import { get } from './get.ts'
import { jobs } from './jobs.ts'
import { keys } from './keys.ts'
import { projects } from './projects.ts'
import { redrive } from './redrive.ts'
import { replay } from './replay.ts'
import { research } from './research.ts'
import { steps } from './steps.ts'
import { submit } from './submit.ts'
import { webhookSecrets } from './webhook-secrets.ts'

/** Every command by its word, in the order of the help. */
export const COMMANDS: Readonly<Record<string, Command>> = {
  submit,
  research,
  follow: followCommand,
  get,
  cancel,
  jobs,
  redrive,
  steps,
  replay,
  projects,
  keys,
  'webhook-secrets': webhookSecrets,
  doctor,
}
