import type { Player } from './player.ts'

export function PlayButton({ player }: { readonly player: Player }) {
  if (!player.sound.value) return null
  return (
    <button type="button" onClick={() => (player.isPlaying.value ? player.stop() : player.play(restart(player)))}>
      {player.isPlaying.value ? 'Pause' : 'Play'}
    </button>
  )
}

/** Position from which playback starts: the current one, or 0 if playback has reached the end. */
function restart({ at, sound }: Player): number {
  return sound.value && at.value < sound.value.duration - 0.05 ? at.value : 0
}
