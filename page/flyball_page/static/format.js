// Figures as people read them. What is not known is a dash, never a zero.

export const UNKNOWN = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function watts(value) {
  if (!known(value)) return UNKNOWN;
  if (Math.abs(value) >= 999_500) return `${(value / 1e6).toFixed(2)} MW`;
  if (Math.abs(value) >= 9_950) return `${(value / 1e3).toFixed(1)} kW`;
  if (Math.abs(value) >= 1_000) return `${(value / 1e3).toFixed(2)} kW`;
  return `${Math.round(value)} W`;
}

export function energy(kilojoules) {
  if (!known(kilojoules)) return UNKNOWN;
  for (const [unit, size] of [["TJ", 1e9], ["GJ", 1e6], ["MJ", 1e3]]) {
    if (kilojoules >= size) return `${(kilojoules / size).toFixed(kilojoules < 10 * size ? 1 : 0)} ${unit}`;
  }
  return `${Math.round(kilojoules)} kJ`;
}

export const kilowattHours = (kilojoules) => (known(kilojoules) ? `${(kilojoules / 3600).toPrecision(3)} kWh` : UNKNOWN);

/** `3 s`, `4 min`, `2 h 5 min`, `3 d 4 h`. */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 90) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const hourMinute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export const time = (seconds) => (known(seconds) ? clock.format(new Date(seconds * 1000)) : UNKNOWN);
export const shortTime = (seconds) => (known(seconds) ? hourMinute.format(new Date(seconds * 1000)) : UNKNOWN);

/** Seconds since 1970 of an RFC 3339 time; null for none. */
export function parseTime(text) {
  if (!text) return null;
  const parsed = Date.parse(text);
  return Number.isNaN(parsed) ? null : parsed / 1000;
}

export const percent = (fraction) => (known(fraction) ? `${Math.floor(fraction * 100)} %` : UNKNOWN);
export const count = (value) => (known(value) ? value.toLocaleString("en") : UNKNOWN);
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
